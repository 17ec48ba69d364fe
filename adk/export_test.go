package adk

import (
	"context"
	"time"

	"github.com/pawl-go/pawl"
)

// ResumeAfter sets the age of the work of another Delete that a Delete finishes.
func (s *Service) ResumeAfter(d time.Duration) { s.resume = d }

// Leftovers returns the number of entries in the streams of all sessions, and that of unfinished
// deletions.
func (s *Service) Leftovers(ctx context.Context) (entries, unfinished int, err error) {
	for after := uint64(0); ; {
		page, err := s.rt.ReadLogs(ctx, after, 500, streams)
		if err != nil || len(page) == 0 {
			for _, err = range deletions.List(ctx, s.rt, pawl.Query{}) {
				unfinished++
			}
			return entries, unfinished, err
		}
		entries, after = entries+len(page), page[len(page)-1].Position
	}
}

package job

import "time"

// Next returns the first tick after t.
func (s *Schedule) Next(t time.Time) (time.Time, error) { return s.next(t) }

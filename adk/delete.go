package adk

import (
	"context"
	"errors"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/stream"
	"google.golang.org/adk/v2/session"
)

const (
	trimStep    = 1000 // entries that one commit removes
	resumeLimit = 10   // deletions of other processes that one Delete finishes
)

// Delete deletes a session with its events. The states of its user and its app stay. Deleting a session
// that does not exist does nothing.
//
// The session is gone with the first commit, and its events are removed by further ones. If Delete is
// interrupted between them, nothing shows the events any more, and a later Delete removes them: one of
// the same id at once, any other one after a minute.
func (s *Service) Delete(ctx context.Context, req *session.DeleteRequest) error {
	if req == nil {
		return errNoRequest
	}
	if err := checkKey(req.AppName, req.UserID, req.SessionID); err != nil {
		return err
	}
	key := sessionID(req.AppName, req.UserID, req.SessionID)
	err := pawl.Transact(ctx, s.rt, func(ctx context.Context, tx *pawl.Tx) error {
		scope := sessions.Scope(tx, key)
		snap, err := scope.Snapshot(ctx)
		if err != nil || !snap.Exists() {
			return err
		}
		if hd := snap.ReadOnly(); hd.Entries > 0 {
			if _, err := deletions.Scope(tx, hd.Stream).SetState(ctx, deletion{Entries: hd.Entries}, pawl.IfAbsent()); err != nil {
				return err
			}
		}
		return scope.Delete(ctx)
	})
	if err != nil {
		return err
	}
	if err := s.finish(ctx, pawl.Query{Prefix: key + "/"}); err != nil {
		return err
	}
	_ = s.finish(ctx, pawl.Query{Age: s.resume, Limit: resumeLimit}) // the next Delete tries again
	return nil
}

// finish completes the deletions that match q. Several processes may complete the same one.
func (s *Service) finish(ctx context.Context, q pawl.Query) error {
	type job struct {
		stream  string
		entries int64
	}
	var jobs []job
	for snap, err := range deletions.List(ctx, s.rt, q) {
		if err != nil {
			return err
		}
		jobs = append(jobs, job{snap.ID, snap.ReadOnly().Entries})
	}
	var failures []error
	for _, j := range jobs {
		err := s.complete(ctx, j.stream, j.entries)
		failures = append(failures, err)
		if ctx.Err() != nil || pawl.IsRetryable(err) { // not about this deletion
			break
		}
	}
	return errors.Join(failures...)
}

// complete completes the deletion of a stream that had a number of entries.
func (s *Service) complete(ctx context.Context, name string, entries int64) error {
	for before := int64(trimStep); before < entries; before += trimStep {
		err := s.log.Trim(ctx, name, before)
		if _, pending := errors.AsType[*stream.PendingError](err); pending || pawl.IsAbsent(err) {
			break // a reaction is behind and loses the events, or another process was faster
		}
		if err != nil {
			return err
		}
	}
	if err := s.log.DeleteStream(ctx, name); err != nil {
		return err
	}
	return deletions.Scope(s.rt, name).Delete(ctx)
}

package run

import (
	"context"

	"github.com/pawl-go/pawl"
)

// Delete deletes a run that is over, with the signals that no step has received. Its key can be used
// again. Deleting it again does nothing. It returns *UnfinishedError for a run that is not over, and
// the errors of pawl's verbs.
//
// A run with unreceived signals of more than 16 names is deleted by several commits. If it has failed,
// the first of them makes it CANCELED: Retry must not start it without its signals.
func (e *Engine) Delete(ctx context.Context, id string) error {
	for {
		if more, err := e.deleteSome(ctx, id); err != nil || !more {
			return err
		}
	}
}

// signalsPerCommit is how many inboxes one commit of Delete deletes.
const signalsPerCommit = 16

// deleteSome deletes a run with its inboxes, or some of the inboxes if they are many. It reports whether
// there may be more to delete.
func (e *Engine) deleteSome(ctx context.Context, id string) (more bool, err error) {
	seen, err := records.Scope(e.rt, id).Snapshot(ctx)
	if err != nil || seen.Version == 0 {
		return false, err
	}
	if status := seen.ReadOnly().Status; !status.Finished() {
		return false, &UnfinishedError{id, status}
	}
	// As long as the run is at this version, it is over and gets no signals.
	var signals []string
	for in, err := range inboxes.List(ctx, e.rt, pawl.Query{Prefix: inboxID(id, ""), Limit: signalsPerCommit + 1}) {
		if err != nil {
			return false, err
		}
		signals = append(signals, in.ID)
	}
	err = pawl.Transact(ctx, e.rt, func(ctx context.Context, tx *pawl.Tx) error {
		scope := records.Scope(tx, id)
		snap, err := scope.Snapshot(ctx)
		if err != nil {
			return err
		}
		if more = snap.Version != seen.Version; more { // look again
			return nil
		}
		for _, signal := range signals[:min(len(signals), signalsPerCommit)] {
			if err := inboxes.Scope(tx, signal).Delete(ctx); err != nil {
				return err
			}
		}
		if more = len(signals) > signalsPerCommit; !more {
			return scope.Delete(ctx)
		}
		r := snap.State()
		if r.Status == Failed {
			r.become(Canceled)
		}
		_, err = scope.SetState(ctx, r)
		return err
	})
	return more, err
}

package machine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// Stranded are the entities of a workflow in one status that is not in its status_types. No step
// and no janitor moves them. A release that renamed a status leaves such entities behind.
type Stranded struct {
	Workflow string
	// Status is the unknown status; empty: the entities have none.
	Status string
	// Count is the number of entities.
	Count int
	// Example is the id of one of them.
	Example string
}

// Survey reads all entities of the module's workflows, reports those in a status that their
// workflow does not know, and returns them by workflow and status, even with an error. It leaves
// out entities whose lease is held: an action of another release may be running.
//
// It returns *pawl.UnavailableError, *pawl.CanceledError and pawl.ErrClosed.
func (j *Janitor) Survey(ctx context.Context) (all []Stranded, err error) {
	for _, m := range j.machines() {
		stranded, failed := j.survey(ctx, m)
		all, err = append(all, stranded...), errors.Join(err, failed)
	}
	return all, err
}

// survey finds and reports the stranded entities of one workflow. A survey that fails reports
// nothing: its counts are too small.
func (j *Janitor) survey(ctx context.Context, m anyMachine) (all []Stranded, err error) {
	w := m.workflow()
	found := map[string]Stranded{} // by status
	q := persist.Query{Kind: m.kind(), Unheld: true, Limit: j.config.Batch}
	for more := true; more; more = q.After != "" {
		page, err := j.e.rt.Store().List(ctx, q)
		if err != nil {
			return nil, j.unavailable(ctx, pawl.Key{Kind: m.kind()}, err)
		}
		for _, r := range page.Records {
			if !slices.Contains(w.Statuses, r.Label) {
				was := found[r.Label]
				found[r.Label] = Stranded{Workflow: w.Name, Status: r.Label, Count: was.Count + 1, Example: cmp.Or(was.Example, r.ID)}
			}
		}
		q.After = page.Next
	}
	for _, status := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[status])
		j.reportStranded(ctx, found[status])
	}
	return all, nil
}

// reportStranded calls Stranded, or logs s.
func (j *Janitor) reportStranded(ctx context.Context, s Stranded) {
	if j.config.Stranded != nil {
		defer j.recoverFrom(ctx, "Stranded", s.Workflow, s.Example)
		j.config.Stranded(s)
		return
	}
	j.e.config.Logger.WarnContext(ctx, "machine: entities in a status that the workflow does not know",
		"workflow", s.Workflow, "status", s.Status, "count", s.Count, "example", s.Example)
}

package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
)

// same reports whether two progresses are the same, whatever the form of their times.
func same(a, b batch.Progress) bool {
	for _, p := range []*batch.Progress{&a, &b} {
		p.CreatedAt, p.FinishedAt = p.CreatedAt.Round(0).UTC(), p.FinishedAt.Round(0).UTC()
	}
	return a == b
}

// itemAfter are the states that an item can have after a state.
var itemAfter = map[batch.ItemState][]batch.ItemState{
	batch.Waiting: {batch.Waiting, batch.Charged, batch.Made, batch.ItemFailed, batch.Finalized, batch.ItemCanceled},
	batch.Charged: {batch.Charged, batch.Made, batch.ItemFailed, batch.Finalized, batch.ItemCanceled},
	batch.Made:    {batch.Made, batch.Finalized, batch.ItemCanceled},
}

// check compares what is stored with what was seen before, and with the points of the account.
func (m *model) check(point string) {
	if m.failure != "" || m.checked == m.commits.Load() {
		return
	}
	m.checked = m.commits.Load()
	ctx, spent := context.Background(), int64(0)
	for id := range modelJobs {
		p, err := m.view.q.Progress(ctx, id)
		before, existed := m.jobs[id]
		if errors.Is(err, pawl.ErrNotFound) && !existed {
			continue
		}
		j := modelJob{Progress: p}
		sums := batch.Progress{}
		for it, err := range m.view.q.Items(ctx, id) {
			if err != nil {
				m.fail("at %s: %v", point, err)
			}
			j.items = append(j.items, it)
			switch it.State {
			case batch.Charged, batch.Made, batch.Finalized:
				sums.Charged += it.Price
			case batch.ItemFailed:
				sums.Failed++
			case batch.ItemCanceled:
				sums.Canceled++
			}
			if it.State == batch.Finalized {
				sums.Finalized++
			}
			if it.Artifact != nil {
				sums.Done++
			}
			if accepted := m.accepted[fmt.Sprint(id, "/", it.Index)]; accepted && it.State != batch.Finalized {
				m.fail("at %s: item %+v was accepted", point, it)
			}
		}
		for i, was := range before.items {
			if now := j.items[i].State; now != was.State && !slices.Contains(itemAfter[was.State], now) {
				m.fail("at %s: item %d of %s was %s and is %s", point, i, id, was.State, now)
			}
		}
		got := batch.Progress{Done: p.Done, Failed: p.Failed, Finalized: p.Finalized, Canceled: p.Canceled, Charged: p.Cost()}
		accepts := before.Progress
		accepts.Finalized = p.Finalized
		switch {
		case err != nil:
			m.fail("at %s: job %s: %v", point, id, err)
		case got != sums:
			m.fail("at %s: the items of %s add up to %+v, and it says %+v", point, id, sums, p)
		case before.Status == batch.Canceled && (!same(p, before.Progress) || m.changed(before, j)):
			m.fail("at %s: %+v was canceled as %+v", point, p, before)
		case before.Status == batch.Completed && !same(p, accepts):
			m.fail("at %s: %+v was completed as %+v", point, p, before.Progress)
		case before.CancelRequested && (!p.CancelRequested || p.Charged != before.Charged):
			m.fail("at %s: cancel was requested of %+v, and it is %+v", point, before.Progress, p)
		}
		m.jobs[id] = j
		spent += sums.Charged
	}
	w, err := wallets.Scope(m.view.rt, m.account).State(ctx)
	if err != nil || w.Points < 0 || w.Points+spent != m.points {
		m.fail("at %s: %d points (%v) and %d spent, of %d", point, w.Points, err, spent, m.points)
	}
}

func (m *model) changed(a, b modelJob) bool {
	return !slices.EqualFunc(a.items, b.items, func(a, b batch.Item[prompt, image]) bool {
		return a.State == b.State && a.Attempts == b.Attempts
	})
}

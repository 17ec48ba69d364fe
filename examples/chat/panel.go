package main

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
)

// stats is a pawl.Observer: it counts what happens to mutations in this process, for the panel.
type stats struct {
	mu                                    sync.Mutex
	committed, conflicts, retries, failed int
	longest                               time.Duration // wait in a queue, of late
	longestAt                             time.Time
	largest                               int // shared commit
	recent                                []happening
}

// happening is an event that is worth showing.
type happening struct {
	At       time.Time `json:"at"`
	What     string    `json:"what"`
	Scope    string    `json:"scope"`
	Path     string    `json:"path"`
	Attempts int       `json:"attempts"`
	key      pawl.Key
}

// Observe is called inside every mutation, so it is short.
func (s *stats) Observe(_ context.Context, e pawl.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Type {
	case pawl.Committed:
		s.committed++
		s.retries += max(0, e.Attempts-1)
		s.largest = max(s.largest, e.Batch)
	case pawl.Conflicted:
		s.conflicts++
	case pawl.Failed:
		s.failed++
	}
	if now := time.Now(); e.Waited > s.longest || now.Sub(s.longestAt) > 10*time.Second {
		s.longest, s.longestAt = e.Waited, now
	}
	switch e.Type {
	case pawl.Conflicted, pawl.TimedOut, pawl.Panicked, pawl.Stuck, pawl.Abandoned, pawl.LeaseLost:
		s.recent = append(s.recent[max(0, len(s.recent)-99):], happening{time.Now(), e.Type.String(), e.Key.String(), e.Path, e.Attempts, e.Key})
	}
}

// getPanel shows what is behind a session: its state, who waits, what is claimed, and what went on in this process lately.
func (s *server) getPanel(w http.ResponseWriter, r *http.Request) error {
	ctx, me, id := r.Context(), visitorOf(r), r.PathValue("id")
	session := Sessions.Scope(s.rt, id)
	if _, err := ownedBy(ctx, session, me.user); err != nil {
		return err
	}
	snap, err := session.Snapshot(ctx)
	if err != nil {
		return err
	}
	type row map[string]any
	waits, claims, charges, mails := []row{}, []row{}, []row{}, []row{}
	for _, open := range snap.ReadOnly().Open {
		t, err := Turns.Scope(s.rt, open.ID).State(ctx)
		switch {
		case err != nil:
			return err
		case t.Status == waiting:
			waits = append(waits, row{"turn": open.ID, "n": open.N, "ms": time.Since(t.Asked).Milliseconds()})
		case t.Status == answering:
			claims = append(claims, row{"what": "answer", "id": open.ID, "turn": open.ID, "ms": time.Since(t.Started).Milliseconds()})
		}
	}
	for c, err := range Charges.List(ctx, s.rt, pawl.Query{Prefix: me.user + "/"}) {
		if err != nil {
			return err
		}
		charges = append(charges, row{"id": c.ID, "amount": c.ReadOnly().Amount, "status": c.ReadOnly().Status})
		if c.ReadOnly().Status == "charging" {
			claims = append(claims, row{"what": "charge_card", "id": c.ID, "ms": time.Since(c.Time).Milliseconds()})
		}
	}
	for m, err := range Mails.List(ctx, s.rt, pawl.Query{Prefix: me.user + "/"}) {
		if err != nil {
			return err
		}
		status := m.ReadOnly().Status
		if m.ReadOnly().Delivered {
			status = "delivered"
		}
		mails = append(mails, row{"id": m.ID, "to": m.ReadOnly().To, "text": m.ReadOnly().Text, "status": status})
	}
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	recent := []happening{}
	for _, h := range slices.Backward(s.stats.recent) { // other people's sessions are none of one's business
		if h.key.ID == id || h.key.ID == me.user || h.key.ID == me.org || h.key.Kind == Counters.Name {
			recent = append(recent, h)
		}
	}
	return respond(w, http.StatusOK, row{
		"scope":    row{"key": session.Key().String(), "version": snap.Version, "state": snap.ReadOnly()},
		"queue":    row{"waiting": waits, "depth": len(waits), "longest_us": s.stats.longest.Microseconds(), "largest": s.stats.largest},
		"claims":   claims,
		"counters": row{"committed": s.stats.committed, "conflicts": s.stats.conflicts, "retries": s.stats.retries, "failed": s.stats.failed},
		"recent":   recent[:min(len(recent), 20)],
		"charges":  charges, "mails": mails,
	})
}

// Counter is what the writers of the contest write to.
type Counter struct {
	N int64 `json:"n"`
}

const (
	writers = 64
	each    = 20
)

// contest is what came of it.
type contest struct {
	Writers int   `json:"writers"`
	Each    int   `json:"each"`
	Ways    []way `json:"ways"`
}

type way struct {
	Name     string  `json:"name"`
	Expected int64   `json:"expected"`
	Present  int64   `json:"present"`
	MS       float64 `json:"ms"`
}

// postContention lets many writers at one counter, in three ways. One contest at a time, in all processes: others are told who is at it.
func (s *server) postContention(w http.ResponseWriter, r *http.Request) error {
	out, err := s.contend.Do(r.Context(), flow.IDs{User: visitorOf(r).user}, none{})
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, out)
}

func (s *server) doContend(ctx context.Context, c *flow.Call, _ none) (contest, error) {
	out := contest{Writers: writers, Each: each}
	increment := func(scope pawl.Scope[Counter]) error {
		_, err := scope.AtomicState(ctx, func(_ context.Context, n *Counter) error { n.N++; return nil })
		return err
	}
	getThenSet := func(scope pawl.Scope[Counter]) error {
		n, err := scope.State(ctx)
		if err == nil {
			n.N++
			_, err = scope.SetState(ctx, n)
		}
		return err
	}
	for _, way := range []way{{Name: "queue in memory"}, {Name: "shared commits"}, {Name: "get-then-set"}} {
		scope, add := Counters.Scope(c, c.Request+" "+way.Name), increment
		switch way.Name {
		case "queue in memory":
			scope = pawl.Memory[Counter](c, "counter")
		case "get-then-set":
			add = getThenSet
		}
		began := time.Now()
		var g errgroup.Group
		for range writers {
			g.Go(func() error {
				for range each {
					if err := add(scope); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return out, err
		}
		way.MS = float64(time.Since(began).Microseconds()) / 1000
		present, err := scope.State(ctx)
		if err != nil {
			return out, err
		}
		way.Expected, way.Present = writers*each, present.N
		out.Ways = append(out.Ways, way)
	}
	return out, nil
}

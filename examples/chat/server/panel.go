package server

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

// stats is a pawl.Observer. It counts the mutations of this process, for the panel.
type stats struct {
	// mu protects the fields below.
	mu                                    sync.Mutex
	committed, conflicts, retries, failed int
	longest                               time.Duration // the longest recent wait in a queue
	longestAt                             time.Time
	largest                               int // the most mutations in one commit
	recent                                []recentEvent
}

// recentEvent is an event that the panel shows.
type recentEvent struct {
	At       time.Time `json:"at"`
	What     string    `json:"what"`
	Scope    string    `json:"scope"`
	Path     string    `json:"path"`
	Attempts int       `json:"attempts"`
	key      pawl.Key
}

// Observe implements pawl.Observer.
func (s *stats) Observe(_ context.Context, e pawl.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Type {
	case pawl.EventCommitted:
		s.committed++
		s.retries += max(0, e.Attempts-1)
		s.largest = max(s.largest, e.Batch)
	case pawl.EventConflicted:
		s.conflicts++
	case pawl.EventFailed:
		s.failed++
	}
	if now := time.Now(); e.Type == pawl.EventStarted && (e.Waited > s.longest || now.Sub(s.longestAt) > 10*time.Second) {
		s.longest, s.longestAt = e.Waited, now
	}
	switch e.Type {
	case pawl.EventConflicted, pawl.EventTimedOut, pawl.EventPanicked, pawl.EventStuck, pawl.EventAbandoned, pawl.EventLeaseLost:
		s.recent = append(s.recent[max(0, len(s.recent)-99):],
			recentEvent{time.Now(), e.Type.String(), e.Key.String(), e.Path, e.Attempts, e.Key})
	}
}

// getPanel returns the state of a session, its waiting turns and claims, and the recent events of
// this process.
func (s *Server) getPanel(w http.ResponseWriter, r *http.Request) error {
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
	recent := []recentEvent{}
	for _, e := range slices.Backward(s.stats.recent) { // without the events of other users
		if e.key.ID == id || e.key.ID == me.user || e.key.ID == me.org || e.key.Kind == Counters.Name {
			recent = append(recent, e)
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

// Counter is the document that the writers of the contest increment.
type Counter struct {
	N int64 `json:"n"`
}

const (
	writers = 64
	each    = 20
)

// contest is the result of concurrent increments of a counter, in several ways.
type contest struct {
	Writers int   `json:"writers"`
	Each    int   `json:"each"` // increments per writer
	Ways    []way `json:"ways"`
}

// way is one way to increment a counter, and its result.
type way struct {
	Name     string  `json:"name"`
	Expected int64   `json:"expected"`
	Present  int64   `json:"present"`
	MS       float64 `json:"ms"`
}

// postContention runs a contest. One contest runs at a time, in all processes; other requests get
// 409.
func (s *Server) postContention(w http.ResponseWriter, r *http.Request) error {
	out, err := s.contend.Do(r.Context(), flow.IDs{User: visitorOf(r).user}, none{})
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, out)
}

// doContend lets many writers increment one counter, in three ways.
func (s *Server) doContend(ctx context.Context, c *flow.Call, _ none) (contest, error) {
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

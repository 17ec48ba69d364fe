package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// W6 measures how a process finds work for a reaction among many positions, and W7 how long it takes
// from an append to the handler.

// position is where a reaction stands on a stream, as package stream stores it.
type position struct {
	Label    string    `json:"label"`
	Due      time.Time `json:"due,omitzero"`
	Reaction string    `json:"reaction"`
	Stream   string    `json:"stream"`
	Life     string    `json:"life,omitempty"`
	Next     int64     `json:"next"`
	Known    int64     `json:"known"`
	Turn     int       `json:"turn,omitempty"`
	Lost     int       `json:"lost,omitempty"`
}

// positions is the kind of positions, as package stream declares it.
var positions = pawl.Kind[position]{Name: "stream.position", Label: "label", Due: "due"}

const (
	reacting   = "react" // the name of the reaction
	readyLabel = "ready/" + reacting
	idleLabel  = "idle/" + reacting
	claimSize  = stream.DefaultConcurrency
)

// claimable and claimOptions are those with which package stream claims.
var (
	claimable    = pawl.Query{Due: true, Labels: []string{readyLabel}, Limit: claimSize}
	claimOptions = []pawl.LeaseOption{pawl.LeaseFor(pawl.DefaultLease), pawl.WithMutation(pawl.Inc{Field: "lost", By: 1})}
)

// fillPositions writes n positions, of which one in so many is pending.
func fillPositions(ctx context.Context, s persist.Store, n, oneIn int) error {
	const batchSize = 1_000
	since := time.Now().Add(-time.Hour).UTC().Truncate(time.Microsecond)
	for from := 0; from < n; from += batchSize {
		c := persist.Commit{ID: fmt.Sprintf("fill.%d", from)}
		for i := from; i < min(from+batchSize, n); i++ {
			p := position{Label: idleLabel, Reaction: reacting, Stream: fmt.Sprintf("conversation-%06d", i), Life: "ABCDEFGHIJ", Next: 8, Known: 8, Turn: 1}
			if i%oneIn == 0 {
				p.Label, p.Due, p.Known = readyLabel, since.Add(time.Duration(i)*time.Microsecond), 9
			}
			doc, err := json.Marshal(p)
			if err != nil {
				return err
			}
			key := pawl.Key{Kind: positions.Name, ID: p.Stream + "/" + reacting}
			c.Writes = append(c.Writes, persist.Write{Key: key, Version: 1, Doc: doc, Label: p.Label, Due: p.Due})
		}
		if _, err := s.Commit(ctx, c); err != nil {
			return fmt.Errorf("filling: %w", err)
		}
	}
	return nil
}

// w6 measures one claim of 16 positions that are pending, among many.
func w6(b *bench) error {
	n := b.pick(100_000, 5_000)
	l := load{writers: 1, each: b.pick(60, 10)}
	for _, store := range []string{inPostgres, inSQLite} {
		shares := []struct {
			name  string
			oneIn int
		}{{"1 %", 100}, {"100 %", 1}}
		var sides []side
		for _, s := range shares {
			sides = append(sides, claiming(store, n, s.oneIn))
		}
		all, err := b.rounds(l, b.pick(3, 1), sides...)
		if err != nil {
			return fmt.Errorf("%s: %w", store, err)
		}
		for i, s := range shares {
			work := fmt.Sprintf("claim of %d among %s positions, %s pending", claimSize, thousands(n), s.name)
			b.addRows(comparison{work: work, store: store, load: l, by: halfWithin}, all[i], nil)
		}
	}
	return nil
}

// errFewClaims says that a claim did not get all that it asked for.
var errFewClaims = errors.New("fewer positions were claimed than are pending")

// claiming claims pending positions, among n of which one in so many is pending. The time of a unit is
// that of the claim. Then the positions are made pending again, behind all others. The first
// repetition fills the store.
func claiming(store string, n, oneIn int) side {
	var rt *pawl.Runtime
	return side{"Pawl", func(b *bench, _ load) (*instance, error) {
		if rt == nil {
			opened, err := openPositions(b, store, n, oneIn)
			if err != nil {
				return nil, err
			}
			rt = opened
		}
		in := &instance{latency: new(histogram)}
		in.do = func(ctx context.Context, _, _ int) error {
			began := time.Now()
			taken, err := positions.Take(ctx, rt, claimable, claimOptions...)
			in.latency.add(time.Since(began))
			if err == nil && len(taken) < claimSize {
				err = errFewClaims
			}
			return errors.Join(err, putBack(ctx, rt, taken))
		}
		return in, nil
	}}
}

// openPositions opens a runtime on a new place with positions.
func openPositions(b *bench, store string, n, oneIn int) (*pawl.Runtime, error) {
	at, err := b.placeIn(store)
	if err != nil {
		return nil, err
	}
	_, rt, closing, err := openStreams(b.ctx, at, nil)
	if err != nil {
		return nil, err
	}
	b.cleanup(closing)
	if err := fillPositions(b.ctx, rt.Store(), n, oneIn); err != nil {
		return nil, err
	}
	return rt, settle(b.ctx, at)
}

// putBack makes positions pending again, and gives their leases back.
func putBack(ctx context.Context, rt *pawl.Runtime, taken []pawl.Taken[position]) error {
	return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		for _, t := range taken {
			_, err := positions.Scope(tx, t.ID).AtomicState(ctx, func(_ context.Context, p *position) error {
				p.Due, p.Lost = t.Time, 0
				return nil
			})
			if err == nil {
				err = t.Lease.ReleaseIn(tx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// reached is an event that a handler was called for.
type reached struct {
	version int64
	at      time.Time // when the handler started
}

// startReaction runs a reaction on the streams at a place. It calls done for each event once it is
// acknowledged.
func startReaction(ctx context.Context, place string, done func(reached)) (l *stream.Log, stop func(), err error) {
	var last atomic.Pointer[reached]
	acked := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		if e.Type == pawl.EventNoted && e.Path == "stream" && e.Verb == stream.VerbAcked {
			done(*last.Load())
		}
	})
	l, _, closing, err := openStreams(ctx, place, acked)
	if err != nil {
		return nil, nil, err
	}
	err = l.React(stream.Reaction{Name: reacting, Handle: func(_ context.Context, d *stream.Delivery) error {
		last.Store(&reached{d.Version, time.Now()})
		return nil
	}})
	if err == nil {
		err = l.Start(ctx)
	}
	if err != nil {
		closing()
		return nil, nil, err
	}
	return l, func() {
		_ = l.Stop(context.Background())
		closing()
	}, nil
}

// reactor is a log to append to, and a reaction to its events.
type reactor struct {
	log *stream.Log
	// next waits until an event is handled and acknowledged.
	next  func(ctx context.Context) (reached, error)
	close func()
}

// reactHere runs the reaction in this process.
func reactHere(b *bench, place string) (*reactor, error) {
	done := make(chan reached, 1)
	l, stop, err := startReaction(b.ctx, place, func(r reached) { done <- r })
	if err != nil {
		return nil, err
	}
	return &reactor{l, func(ctx context.Context) (r reached, err error) {
		select {
		case r = <-done:
			return r, nil
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}, stop}, nil
}

// reactThere runs the reaction in a child process.
func reactThere(b *bench, place string) (*reactor, error) {
	l, _, closing, err := openStreams(b.ctx, place, nil)
	if err != nil {
		return nil, err
	}
	c, err := startChild(b.ctx, childTask{React: place})
	if err != nil {
		closing()
		return nil, err
	}
	return &reactor{l, func(context.Context) (r reached, err error) {
		var at int64
		_, err = fmt.Fscanln(c.stdout, &r.version, &at) // ends with the child, at the latest with the run
		r.at = time.Unix(0, at)
		return r, err
	}, func() {
		_ = c.end()
		closing()
	}}, nil
}

// react runs in a child process. It prints the version of each event and the time of its handler, until
// stdin ends.
func (e childTask) react() error {
	_, stop, err := startReaction(context.Background(), e.React, func(r reached) { fmt.Println(r.version, r.at.UnixNano()) })
	if err != nil {
		return err
	}
	defer stop()
	fmt.Print(ready)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// w7 measures the time from the return of Append to the start of a handler, on a system that does
// nothing else.
func w7(b *bench) error {
	for _, where := range []struct {
		name  string
		start func(b *bench, place string) (*reactor, error)
	}{
		{"in the same process", reactHere},
		{"in another process", reactThere},
	} {
		l := load{writers: 1, each: b.pick(200, 10)}
		m, err := b.once(reactionTo(where.start), l)
		if err != nil {
			return err
		}
		work := "Append returned to handler started, " + where.name
		b.addRows(comparison{work: work, store: inPostgres, load: l, by: halfWithin}, []measured{m}, nil)
	}
	return nil
}

// idlePause is the time between two units of W7. It is longer than the pause of the store between two
// notifications, so each unit finds the system idle.
const idlePause = 50 * time.Millisecond

// reactionTo times the way from an append to its handler, one event at a time.
func reactionTo(start func(b *bench, place string) (*reactor, error)) side {
	return side{"Pawl", func(b *bench, _ load) (*instance, error) {
		place, err := b.placeIn(inPostgres)
		if err != nil {
			return nil, err
		}
		r, err := start(b, place)
		if err != nil {
			return nil, err
		}
		in := &instance{latency: new(histogram), close: r.close}
		in.do = func(ctx context.Context, _, _ int) error {
			events, err := r.log.Append(ctx, "conversation", stream.Any, hello)
			returned := time.Now()
			if err != nil {
				return err
			}
			got, err := r.next(ctx)
			if err != nil {
				return err
			}
			if got.version != events[0].Version {
				return fmt.Errorf("event %d was handled instead of %d", got.version, events[0].Version)
			}
			in.latency.add(got.at.Sub(returned))
			time.Sleep(idlePause)
			return nil
		}
		for range 3 { // until the other process listens, and all connections are open
			if err := in.do(b.ctx, 0, 0); err != nil {
				r.close()
				return nil, fmt.Errorf("warming: %w", err)
			}
		}
		*in.latency = histogram{}
		return in, nil
	}}
}

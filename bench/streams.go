package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
	"github.com/pawl-go/pawl/stream"
)

// S1 and G3 append messages to event streams. No reaction runs, and nothing reads the order of all
// streams. W6 and W7 measure reactions: see reactions.go.

// openStreams opens the event streams at a place: the URL of a database, or the path of a database
// file. Its store has the zero Config, as docs/stores.md shows.
func openStreams(ctx context.Context, place string, o pawl.Observer) (l *stream.Log, rt *pawl.Runtime, closing func(), err error) {
	var store persist.Store
	if strings.HasPrefix(place, "postgres") {
		store, err = postgres.Open(ctx, place, postgres.Config{})
	} else {
		store, err = sqlite.Open(ctx, place, sqlite.Config{})
	}
	if err != nil {
		return nil, nil, nil, err
	}
	closing = func() { _ = store.Close() }
	if rt, err = pawl.Open(pawl.Config{Store: store, Observer: o}); err != nil {
		closing()
		return nil, nil, nil, err
	}
	closing = func() {
		_ = rt.Close(context.Background())
		_ = store.Close()
	}
	l, err = stream.New(rt, stream.Config{
		Events: []stream.Type{stream.Of[message]("message")}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		closing()
		return nil, nil, nil, err
	}
	return l, rt, closing, nil
}

// countEvents returns the number of events of a stream from a version on, as the store has them. It
// returns an error if a version is missing.
func countEvents(ctx context.Context, l *stream.Log, name string, from int64) (n int64, err error) {
	for e, err := range l.Read(ctx, name, stream.Query{From: from}) {
		if err != nil {
			return 0, err
		}
		if e.Version != from+n {
			return 0, fmt.Errorf("%s: version %d is followed by %d", name, from+n-1, e.Version)
		}
		n++
	}
	return n, nil
}

// appender is a contender of S1.
type appender struct {
	// append appends one message to a stream. Nil means that the message is durable.
	append func(ctx context.Context, name string, m message) error
	// count returns the number of messages in a stream, without a cache.
	count func(ctx context.Context, name string) (int64, error)
	close func()
}

// openAppender opens Pawl as a contender of S1.
func openAppender(b *bench, store string) (*appender, error) {
	place, err := b.placeIn(store)
	if err != nil {
		return nil, err
	}
	l, _, closing, err := openStreams(b.ctx, place, nil)
	if err != nil {
		return nil, err
	}
	return &appender{
		append: func(ctx context.Context, name string, m message) error {
			_, err := l.Append(ctx, name, stream.Any, m)
			return err
		},
		count: func(ctx context.Context, name string) (int64, error) { return countEvents(ctx, l, name, 0) },
		close: closing,
	}, nil
}

// appending is a contender whose writers share so many streams.
func appending(name, store string, streams int, open func(b *bench, store string) (*appender, error)) side {
	return side{name, func(b *bench, l load) (*instance, error) {
		a, err := open(b, store)
		if err != nil {
			return nil, err
		}
		// Pools open their connections before the measurement.
		warm := &instance{do: func(ctx context.Context, _, _ int) error { return a.append(ctx, "warm", hello) }}
		m, err := drive(b.ctx, warm, load{writers: l.writers, each: 4})
		if err == nil {
			err = m.err
		}
		if err != nil {
			a.close()
			return nil, fmt.Errorf("warming: %w", err)
		}
		names := make([]string, streams)
		for i := range names {
			names[i] = fmt.Sprintf("conversation-%d", i)
		}
		return &instance{
			do: func(ctx context.Context, writer, _ int) error { return a.append(ctx, names[writer%streams], hello) },
			present: func(ctx context.Context) (sum int64, err error) {
				for _, name := range names {
					n, err := a.count(ctx, name)
					if err != nil {
						return 0, err
					}
					sum += n
				}
				return sum, nil
			},
			close: a.close,
		}, nil
	}}
}

// s1 measures the append of one event: by one writer, by ten writers on each of ten streams, and by 64
// writers on one stream.
func s1(b *bench) error {
	for _, w := range []struct {
		work             string
		streams, writers int
		times            int
		goal             *bound // on PostgreSQL
	}{
		{"append of one event", 1, 1, b.pick(9, 1), atLeast(0.8)}, // many, because the difference is small
		{"append of one event, 10 streams of 10 writers", 10, 100, b.pick(5, 1), atLeast(0.8)},
		{"append of one event, one hot stream", 1, 64, b.pick(5, 1), atLeast(5)},
	} {
		l := load{writers: w.writers, lasts: b.lasting(800, 150)}
		inTable := comparison{
			work: w.work, store: inPostgres, load: l, times: w.times, goal: w.goal, flawless: true,
			ours: appending("Pawl", inPostgres, w.streams, openAppender),
			peer: appending(inserting, inPostgres, w.streams, openEventTable(0)),
		}
		if w.streams > 1 { // for the record: the peer gets more connections
			inTable.also = []side{appending(inserting+", 64 connections", inPostgres, w.streams, openEventTable(64))}
		}
		inFile := comparison{
			work: w.work, store: inSQLite, load: l, times: b.pick(3, 1),
			ours: appending("Pawl", inSQLite, w.streams, openAppender),
			peer: appending(inserting, inSQLite, w.streams, openEventTable(0)),
		}
		if err := b.runComparisons(inTable, inFile); err != nil {
			return err
		}
	}
	return nil
}

// g3 measures an append to streams of growing length, each size in a store of its own.
func g3(b *bench) error {
	for _, store := range []string{inSQLite, inPostgres} {
		err := b.grow(curve{
			work: "append to a conversation of %s messages", store: store, sizes: []int{10, 1_000, b.pick(100_000, 10_000)},
			load: load{writers: 1, each: b.pick(2_000, 200)}, times: b.pick(5, 2), goal: atMost(0.1),
			side: func(n int) side { return lengthening(store, n) },
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lengthening appends messages to conversations of n, one after the other, until each has 2n. The
// first repetition opens the store, and the others go on with its conversations.
func lengthening(store string, n int) side {
	var c *conversations
	return side{"Pawl", func(b *bench, l load) (*instance, error) {
		if c == nil {
			opened, err := openConversations(b, store, n)
			if err != nil {
				return nil, err
			}
			c = opened
		}
		turns, err := c.next(b.ctx, l.each)
		if err != nil {
			return nil, err
		}
		before := map[string]int64{}
		for _, name := range turns {
			if _, known := before[name]; known {
				continue
			}
			h, err := c.log.Head(b.ctx, name)
			if err != nil {
				return nil, err
			}
			before[name] = h.Last + 1
		}
		return &instance{
			do: func(ctx context.Context, _, i int) error {
				_, err := c.log.Append(ctx, turns[i], stream.Any, hello)
				return err
			},
			present: func(ctx context.Context) (sum int64, err error) {
				for name, from := range before {
					n, err := countEvents(ctx, c.log, name, from)
					if err != nil {
						return 0, err
					}
					sum += n
				}
				return sum, nil
			},
		}, nil
	}}
}

// conversations are streams that are made with n messages and grow to 2n.
type conversations struct {
	log  *stream.Log
	n    int
	made int    // how many were made
	last string // the one that was made last
	room int    // the messages that it can still take
}

// openConversations makes the first conversation of n messages, in a new place.
func openConversations(b *bench, store string, n int) (*conversations, error) {
	place, err := b.placeIn(store)
	if err != nil {
		return nil, err
	}
	l, _, closing, err := openStreams(b.ctx, place, nil)
	if err != nil {
		return nil, err
	}
	b.cleanup(closing)
	c := &conversations{log: l, n: n}
	if err := c.fill(b.ctx); err != nil {
		return nil, err
	}
	return c, settle(b.ctx, place)
}

// next returns the conversation of each of so many appends. It makes those that are missing.
func (c *conversations) next(ctx context.Context, appends int) (turns []string, err error) {
	for len(turns) < appends {
		if c.room == 0 {
			if err := c.fill(ctx); err != nil {
				return nil, err
			}
		}
		for ; c.room > 0 && len(turns) < appends; c.room-- {
			turns = append(turns, c.last)
		}
	}
	return turns, nil
}

// fill makes a conversation of n messages, by large appends.
func (c *conversations) fill(ctx context.Context) error {
	const most = 1_000
	c.last = fmt.Sprintf("conversation-%d", c.made)
	c.made++
	c.room = c.n
	for left := c.n; left > 0; {
		events := make([]any, min(left, most))
		for i := range events {
			events[i] = hello
		}
		if _, err := c.log.Append(ctx, c.last, stream.Any, events...); err != nil {
			return fmt.Errorf("filling: %w", err)
		}
		left -= len(events)
	}
	return nil
}

// settle lets PostgreSQL gather the statistics of a place that was filled, as its autovacuum does in
// time. Otherwise that begins during the measurement.
func settle(ctx context.Context, place string) error {
	if !strings.HasPrefix(place, "postgres") {
		return nil
	}
	conn, err := pgx.Connect(ctx, place)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "VACUUM ANALYZE")
	return err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// No contender of S1 fails or loses an acknowledged message, on one stream and on several.
func TestAppendersLoseNothing(t *testing.T) {
	b := benchFor(t)
	withPostgres(t, b)
	for _, store := range []string{inPostgres, inSQLite} {
		for name, open := range map[string]func(*bench, string) (*appender, error){
			"Pawl": openAppender, inserting: openEventTable(0), inserting + ", 64 connections": openEventTable(64),
		} {
			for _, streams := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/%s/%d", store, name, streams), func(t *testing.T) {
					m, err := b.once(appending(name, store, streams, open), load{writers: 9, each: 5})
					require.NoError(t, err)
					require.EqualValues(t, 45, m.acknowledged)
					require.Zero(t, m.failed)
					require.Zero(t, m.lost)
				})
			}
		}
	}
}

// Messages that are missing are counted, for both contenders.
func TestLossOfMessagesIsCounted(t *testing.T) {
	b := benchFor(t)
	for name, open := range map[string]func(*bench, string) (*appender, error){"Pawl": openAppender, inserting: openEventTable(0)} {
		forgetful := func(b *bench, store string) (*appender, error) {
			a, err := open(b, store)
			if err != nil {
				return nil, err
			}
			add, n := a.append, 0
			a.append = func(ctx context.Context, name string, m message) error {
				if n++; n%5 == 0 {
					return nil
				}
				return add(ctx, name, m)
			}
			return a, nil
		}
		m, err := b.once(appending(name, inSQLite, 1, forgetful), load{writers: 1, each: 11}) // after 4 that warm it
		require.NoError(t, err)
		require.EqualValues(t, 11, m.acknowledged, name)
		require.EqualValues(t, 3, m.lost, name)
	}
}

// An append by hand that finds its version taken tries again, at the next version.
func TestInsertTriesAgain(t *testing.T) {
	b := benchFor(t)
	withPostgres(t, b)
	url, err := b.database()
	require.NoError(t, err)
	a, err := openPgEvents(t.Context(), url, 0)
	require.NoError(t, err)
	defer a.close()

	other, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer other.Close(context.Background())
	tx, err := other.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), insertEvent, "conversation", []byte(`{}`))
	require.NoError(t, err)

	done := make(chan error, 1)
	go func() { done <- a.append(t.Context(), "conversation", hello) }()
	watching, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer watching.Close(context.Background())
	require.Eventually(t, func() bool {
		var waiting int
		err := watching.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO events%'`).Scan(&waiting)
		return err == nil && waiting == 1
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-done)
	n, err := a.count(t.Context(), "conversation")
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
}

// Conversations are made with n messages and take n more. A repetition goes on with the last one.
func TestConversationsGrow(t *testing.T) {
	b := benchFor(t)
	c, err := openConversations(b, inSQLite, 4)
	require.NoError(t, err)
	for _, step := range []struct {
		appends int
		want    map[string]int
	}{
		{6, map[string]int{"conversation-0": 4, "conversation-1": 2}},
		{3, map[string]int{"conversation-1": 2, "conversation-2": 1}},
	} {
		turns, err := c.next(t.Context(), step.appends)
		require.NoError(t, err)
		got := map[string]int{}
		for _, name := range turns {
			got[name]++
		}
		require.Equal(t, step.want, got)
	}
	for i := range 3 {
		h, err := c.log.Head(t.Context(), fmt.Sprintf("conversation-%d", i))
		require.NoError(t, err)
		require.EqualValues(t, 3, h.Last)
	}

	long, err := openConversations(b, inSQLite, 2_001) // by three appends
	require.NoError(t, err)
	h, err := long.log.Head(t.Context(), long.last)
	require.NoError(t, err)
	require.EqualValues(t, 2_000, h.Last)
}

// Every append of G3 is there, in each repetition.
func TestLengthening(t *testing.T) {
	b := benchFor(t)
	withPostgres(t, b)
	for _, store := range []string{inSQLite, inPostgres} {
		s := lengthening(store, 4)
		for range 2 {
			m, err := b.once(s, load{writers: 1, each: 10})
			require.NoError(t, err)
			require.EqualValues(t, 10, m.acknowledged, store)
			require.Zero(t, m.failed, store)
			require.Zero(t, m.lost, store)
		}
	}
}

// An exponent within its goal does not count if a call failed or an update was lost.
func TestGrowthIsFlawless(t *testing.T) {
	for name, flaw := range map[string]func(in *instance){
		"none":   func(*instance) {},
		"failed": func(in *instance) { in.do = failingOnce() },
		"lost":   func(in *instance) { in.present = func(context.Context) (int64, error) { return 0, nil } },
	} {
		b := newBench(t.Context(), true)
		require.NoError(t, b.grow(curve{
			work: "work on %s", store: "memory", sizes: []int{1, 10}, load: load{writers: 1, each: 5}, times: 1, goal: atMost(100),
			side: func(int) side {
				return side{"Pawl", func(*bench, load) (*instance, error) {
					in := &instance{do: func(context.Context, int, int) error { return nil }}
					flaw(in)
					return in, nil
				}}
			},
		}))
		last := b.rows[len(b.rows)-1]
		require.Equal(t, "exponent", last.Unit)
		require.Equal(t, name == "none", *last.Met, name)
	}
}

func failingOnce() func(context.Context, int, int) error {
	return func(_ context.Context, _, i int) error {
		if i == 2 {
			return errors.New("refused")
		}
		return nil
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"
)

// The naive compare-and-swap loop: read the document and its version, change it, and write it if the
// version is unchanged. Otherwise wait a little and start again. It loses no update. After a number
// of tries it returns an error.

// naive8 tries eight times, with exponential backoff and full jitter, starting at 10 ms.
var naive8 = naiveLoop("naive CAS, 8 tries", 0, 8, jittered)

// naive8Wide is naive8 with a pool of 64 connections. It is faster than naive8 if the writers change
// different documents, and slower if they change one.
var naive8Wide = naiveLoop("naive CAS, 8 tries, 64 connections", 64, 8, jittered)

func jittered(lost int) time.Duration { return rand.N(10 * time.Millisecond << (lost - 1)) }

// naive3 retries three times, after 10, 20 and 40 ms.
var naive3 = naiveLoop("naive CAS, 3 retries", 0, 4, func(lost int) time.Duration {
	return 10 * time.Millisecond << (lost - 1)
})

var errGaveUp = errors.New("gave up: every try lost to another writer")

func naiveLoop(name string, connections, tries int, backoff func(lost int) time.Duration) strategy {
	return onTable(name, connections, func(string) string { return name }, func(t table, c *contender) func(context.Context, string) error {
		return func(ctx context.Context, id string) error {
			return retrying(ctx, c, tries, backoff, func() (bool, error) {
				doc, version, err := t.read(ctx, id)
				if err != nil {
					return false, err
				}
				if doc, err = counted(doc); err != nil {
					return false, err
				}
				return t.swap(ctx, id, doc, version)
			})
		}
	})
}

// retrying calls try until it wins or fails, and sleeps after each lost try. After the last try it
// returns errGaveUp.
func retrying(ctx context.Context, c *contender, tries int, backoff func(lost int) time.Duration, try func() (won bool, err error)) error {
	for lost := 1; ; lost++ {
		won, err := try()
		if won || err != nil {
			return err
		}
		if lost == tries {
			return errGaveUp
		}
		c.conflicts.Add(1)
		select {
		case <-time.After(backoff(lost)):
		case <-c.cut:
			return errCut
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// onTable returns a strategy on the table that the peers share in each store.
func onTable(key string, connections int, name func(store string) string, how func(t table, c *contender) (add func(context.Context, string) error)) strategy {
	over := func(t table) *contender {
		c := &contender{count: t.count, fill: t.fill, place: t.place(), close: func() {}}
		c.add = how(t, c)
		c.read = func(ctx context.Context, id string) error {
			doc, _, err := t.read(ctx, id)
			if err != nil {
				return err
			}
			return json.Unmarshal(doc, new(document))
		}
		return c
	}
	return strategy{
		key: key, name: name,
		open: func(b *bench, store string) (*contender, error) {
			t, err := b.tableIn(store, connections)
			if err != nil {
				return nil, err
			}
			return over(t), nil
		},
		reopen: func(ctx context.Context, place string) (*contender, error) {
			t, err := openTable(ctx, place, connections)
			if err != nil {
				return nil, err
			}
			c := over(t)
			c.close = t.close
			return c, nil
		},
	}
}

func (t pgTable) swap(ctx context.Context, id string, doc []byte, version int64) (bool, error) {
	tag, err := t.pool.Exec(ctx, `UPDATE documents SET doc = $1, version = version + 1 WHERE id = $2 AND version = $3`, doc, id, version)
	return tag.RowsAffected() == 1, err
}

func (t *liteTable) swap(ctx context.Context, id string, doc []byte, version int64) (bool, error) {
	result, err := t.swapping.ExecContext(ctx, string(doc), id, version)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

func (t fileTable) swap(ctx context.Context, id string, doc []byte, version int64) (swapped bool, err error) {
	err = t.locked(id, func() error {
		_, current, err := t.read(ctx, id)
		if err != nil || current != version {
			return err
		}
		swapped = true
		return t.write(id, doc, version+1)
	})
	return swapped, err
}

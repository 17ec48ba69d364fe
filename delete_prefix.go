package pawl

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/persist"
)

// deleteBatch is the number of documents that DeletePrefix deletes in one commit.
const deleteBatch = 500

// deletePause bounds the pause of DeletePrefix after a batch that deleted nothing.
const deletePause = 20 * time.Millisecond

// DeletePrefix deletes the scopes of this persisted kind whose ids start with prefix, as
// Scope.Delete does, and returns their number. Expired ones that no Sweeper has removed are among
// them. It commits batch by batch, until a listing finds none left. So it can be stopped at any
// time, run again, and run in several processes at once; each scope is counted by one of them.
//
// A scope that is written or created meanwhile is deleted too, if a later listing finds it. A scope
// that is leased is deleted as well: its lease ends, and commits of its holder are refused. Under
// the context of a lease, each batch is tested against that lease.
//
// DeletePrefix returns the number also with an error: *ArgumentError for an empty prefix, the
// errors of Kind.List, *LeaseLostError, and *UnknownOutcomeError if the last batch may have been
// committed; it is not counted then.
func (k Kind[T]) DeletePrefix(ctx context.Context, o Owner, prefix string) (deleted int, err error) {
	b, err := settings(k).listable(ctx, o, typed[T]{}, Query{})
	if err != nil {
		return 0, err
	}
	return b.deletePrefix(ctx, prefix)
}

// deletePrefix is Kind.DeletePrefix.
func (b *binding) deletePrefix(ctx context.Context, prefix string) (deleted int, err error) {
	name := b.kind.Name
	if prefix == "" {
		return 0, &ArgumentError{Argument: "prefix", Reason: "empty"}
	}
	key, lease, log := Key{Kind: name, ID: prefix}, innermost(ctx).held(), b.rt.cleared(name)
	if lease != nil {
		if err := lease.coversStore(b.rt); err != nil {
			return 0, err
		}
	}
	// Of the live ones, then of the expired, and again of the live if one of these was written meanwhile.
	q, renewed := persist.Query{Kind: name, Prefix: prefix, Limit: deleteBatch}, false
	for {
		if err := b.ready(ctx); err != nil {
			return deleted, err
		}
		page, err := b.rt.list(ctx, q)
		if err != nil {
			return deleted, storeError(ctx, key, err)
		}
		if len(page.Records) == 0 && q.Expired && !renewed {
			return deleted, nil
		}
		var c persist.Commit
		for _, r := range page.Records {
			c.Writes = append(c.Writes, persist.Write{Key: r.Key, Expected: r.Version, Gone: q.Expired, Version: r.Version + 1, Deleted: true, Log: log})
		}
		lease.fences(&c)
		n, _, err := b.rt.commitCurrent(ctx, c, &q.Limit)
		deleted += n
		if err != nil {
			return deleted, b.deleteError(ctx, key, err)
		}
		renewed = renewed || q.Expired && n < len(page.Records)
		switch {
		case len(page.Records) == 0:
			q.Expired, renewed = !q.Expired, false
		case n == 0: // all of them were written meanwhile
			commit.Sleep(ctx, rand.N(deletePause))
		}
	}
}

// deleteError returns the error of DeletePrefix for err, which the store returned for a batch.
func (b *binding) deleteError(ctx context.Context, key Key, err error) error {
	if fenced, ok := errors.AsType[*persist.Fenced](err); ok {
		return &LeaseLostError{Scope: fenced.Current.Key, Token: fenced.Token}
	}
	if commit.NotApplied(err) {
		return storeError(ctx, key, err)
	}
	return &UnknownOutcomeError{Scope: key, Cause: err}
}

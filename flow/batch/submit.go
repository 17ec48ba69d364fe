package batch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pawl-go/pawl"
)

// MaxItems is the maximum number of items of a job.
const MaxItems = 1_000_000

// Job is what Submit takes.
type Job[I any] struct {
	ID      string // of the program's choice, such as the key of a request
	Account string // in the ledger
	Items   []I
}

// Submit stores a job and returns created=true. Repeated with the same id, account and items, it
// returns the progress of that job and created=false, and stores items that an interrupted Submit
// left out. A job of more than Config.Chunk items, or of more than the store takes in a commit, is
// stored by several commits, and waits for a worker after the last one; on a queue of In, all of them
// are parts of the transaction.
//
// It returns pawl.ErrExists if the id belongs to another account or other items, *PriceError,
// pawl.ErrNotFound if there is no such account, *StatusError if the job was canceled meanwhile,
// *pawl.ArgumentError and *pawl.LimitError for bad input, and the errors of pawl.Transact.
func (q *Queue[I, A]) Submit(ctx context.Context, j Job[I]) (p Progress, created bool, err error) {
	hash, err := q.check(j)
	if err != nil {
		return p, false, err
	}
	was, err := q.jobs.Scope(q.owner, j.ID).Snapshot(ctx)
	if err != nil && !errors.Is(err, pawl.ErrDeleted) {
		return p, false, err
	}
	if r := was.State(); was.Exists() && r.Hash == hash && r.Stored == r.Items {
		return progressOf(j.ID, &r), false, nil
	}
	prices, err := q.prices(j)
	if err != nil {
		return p, false, err
	}
	for size := q.config.Chunk; ; {
		var r record
		first := false
		err := pawl.Transact(ctx, q.owner, func(ctx context.Context, tx *pawl.Tx) error {
			snap, err := q.jobs.Scope(tx, j.ID).Snapshot(ctx)
			if err != nil && !errors.Is(err, pawl.ErrDeleted) {
				return err
			}
			r, first = snap.State(), snap.Version == 0
			if first {
				if err := q.config.Ledger.Add(ctx, tx, j.Account, 0); err != nil {
					return err
				}
				now := time.Now()
				r = record{Account: j.Account, Hash: hash, Items: len(j.Items), Created: now}
				if err := r.become(Pending, now); err != nil {
					return err
				}
			}
			switch {
			case r.Hash != hash:
				return fmt.Errorf("%w: job %.80q has another account or other items", pawl.ErrExists, j.ID)
			case r.status() == Pending:
				return q.store(ctx, tx, &r, first, size, j, prices)
			case r.Stored < r.Items:
				return &StatusError{Job: j.ID, Status: r.status(), Requested: r.Requested, Wanted: "submit"}
			}
			return nil
		})
		_, joined := q.owner.(*pawl.Tx) // its commit comes later, and cannot be smaller
		if size = min(size, len(j.Items)); size > 1 && tooLarge(err) && !joined {
			size /= 2
			continue
		}
		if err != nil {
			return p, created, err
		}
		q.hook(atStored, j.ID)
		created = created || first
		if r.Stored == r.Items {
			return progressOf(j.ID, &r), created, nil
		}
	}
}

// store adds the next items, at most size, to a pending job, which waits for a worker after the last one.
func (q *Queue[I, A]) store(
	ctx context.Context, tx *pawl.Tx, r *record, first bool, size int, j Job[I], prices []int64,
) error {
	var opts []pawl.CallOption
	if first {
		opts = append(opts, pawl.IfAbsent())
	}
	end := min(r.Stored+size, r.Items)
	for i := r.Stored; i < end; i++ {
		it := item[I, A]{State: Waiting, Index: i, Data: j.Items[i], Price: prices[i]}
		if _, err := q.items.Scope(tx, itemID(j.ID, i)).SetState(ctx, it, pawl.IfAbsent()); err != nil {
			return err
		}
	}
	if r.Stored = end; end == r.Items {
		if err := r.become(Queued, time.Now()); err != nil {
			return err
		}
		opts = append(opts, pawl.WithDueIn(0))
	}
	_, err := q.jobs.Scope(tx, j.ID).SetState(ctx, *r, opts...)
	return err
}

// check returns a hash of the job.
func (q *Queue[I, A]) check(j Job[I]) (hash string, err error) {
	bad := func(reason string) error { return &pawl.ArgumentError{Argument: "Job", Reason: reason} }
	limit := func(what string, limit, got int) error {
		return &pawl.LimitError{Scope: pawl.Key{Kind: q.jobs.Name, ID: j.ID}, What: what, Limit: limit, Got: got}
	}
	switch {
	case j.ID == "" || j.Account == "":
		return "", bad("ID and Account are required")
	case len(j.Items) == 0:
		return "", bad("there are no items")
	case len(j.Items) > MaxItems:
		return "", limit("items", MaxItems, len(j.Items))
	case len(j.Account) > pawl.MaxID:
		return "", limit("account", pawl.MaxID, len(j.Account))
	}
	if n := len(itemID(j.ID, 0)); n > pawl.MaxID {
		return "", limit("id", pawl.MaxID, n)
	}
	digest := sha256.New()
	encoder := json.NewEncoder(digest)
	if err := encoder.Encode(j.Account); err != nil {
		return "", bad(err.Error())
	}
	for i, it := range j.Items {
		if err := encoder.Encode(it); err != nil {
			return "", bad(fmt.Sprintf("item %d: %v", i, err))
		}
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

// prices returns the prices of the items. It returns *pawl.LimitError for an item that is too large.
func (q *Queue[I, A]) prices(j Job[I]) (prices []int64, err error) {
	sum := int64(0)
	for i, it := range j.Items {
		price, err := q.config.Price(it)
		if err != nil || price < 0 || price > math.MaxInt64-sum {
			return nil, &PriceError{Item: i, Price: price, Err: err}
		}
		if err := q.fits(j.ID, item[I, A]{State: Waiting, Index: i, Data: it, Price: price}); err != nil {
			return nil, err
		}
		sum += price
		prices = append(prices, price)
	}
	return prices, nil
}

// maxGrowth is how much the document of an item may grow by the name of a state, attempts and the
// text of an error.
const maxGrowth = 32 << 10

// fits returns *pawl.LimitError for an item whose document could not grow as much as it may have to.
// It could then be neither refunded nor finalized.
func (q *Queue[I, A]) fits(id string, it item[I, A]) error {
	doc, err := json.Marshal(it)
	limit := q.rt.MaxDoc() - min(maxGrowth, q.rt.MaxDoc()/4)
	if err == nil && len(doc) > limit {
		err = &pawl.LimitError{Scope: pawl.Key{Kind: q.items.Name, ID: itemID(id, it.Index)}, What: "document", Limit: limit, Got: len(doc)}
	}
	return err
}

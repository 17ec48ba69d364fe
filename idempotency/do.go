package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl"
)

// Op names an operation for Do and DoTx.
type Op struct {
	Principal string // whose key it is; may be empty
	Name      string // what is done, as a route is for requests
	Key       string // made from what caused it, such as the id of a message or of a tool call
	Input     any    // what it is done with; compared as JSON, so that a key cannot stand for two things
}

// ids returns the id of the record of op and the hash of its input.
func (op Op) ids() (id, print string, err error) {
	switch {
	case op.Name == "" || op.Key == "":
		return "", "", &pawl.ArgumentError{Argument: "Op", Reason: "without a name or a key"}
	case len(op.Key) > MaxKey:
		return "", "", &pawl.ArgumentError{Argument: "Op.Key", Reason: fmt.Sprintf("more than %d bytes", MaxKey)}
	}
	input, err := json.Marshal(op.Input)
	if err != nil {
		return "", "", &pawl.ArgumentError{Argument: "Op.Input", Reason: err.Error()}
	}
	return hash("do", op.Principal, op.Name, op.Key), hash(string(input)), nil
}

// Do runs fn once per key and returns its result, on every repeat too; then replayed is true. The result is stored as JSON. An error of fn, or a panic, frees the key, unless it
// is pawl.NonRetryable: then it is stored, and comes back as *StoredError. Fn's context ends with ctx, and when the lease of the key is lost; nothing that is committed with
// it lands after that. If the process dies while fn runs, or before its result is stored, fn runs again, after the lease: what fn does to
// the outside should be safe to repeat, or be done by DoTx.
//
// It returns *pawl.HeldError while fn runs elsewhere, longer than Config.Wait; *ReusedError for another input; *pawl.ArgumentError for an Op that is none, or a nil fn; pawl.ErrOutsideTx inside a transaction; and errors of the
// store. If fn ran and its result could not be stored, the error is *pawl.LeaseLostError, *pawl.LimitError for a result that is too large, one of the JSON encoding, or one of the store;
// the result is returned all the same, but another run may come to another.
func Do[T any](ctx context.Context, k *Keys, op Op, fn func(ctx context.Context) (T, error)) (result T, replayed bool, err error) {
	id, print, err := op.ids()
	if err == nil && fn == nil {
		err = &pawl.ArgumentError{Argument: "Do", Reason: "nil function"}
	}
	if err != nil {
		return result, false, err
	}
	a, err := k.claim(ctx, id, print)
	if err != nil {
		return replayedOr[T](op, err)
	}
	a.run(ctx, func(ctx context.Context) {
		result, err = fn(ctx)
		r, stored := outcome(result, err)
		if stored == nil && r != nil {
			stored = a.settle(*r)
		}
		if known, ok := errors.AsType[*answered](stored); ok { // a DoTx was faster
			result, replayed, err = replayedOr[T](op, known)
		} else if stored != nil {
			if err != nil { // final, but another run may come to something else
				stored = fmt.Errorf("%w; fn had failed: %v", stored, err)
			}
			err = stored
		}
	})
	return result, replayed, err
}

// outcome is what is stored of a run, nil if it frees the key.
func outcome(result any, err error) (*record, error) {
	if err != nil {
		if !pawl.IsNonRetryable(err) {
			return nil, nil
		}
		return &record{Failed: &StoredError{Was: pawl.Code(err), Status: pawl.HTTPStatus(err), Text: err.Error()}}, nil
	}
	body, err := json.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("idempotency: the result cannot be stored: %w", err)
	}
	return &record{Body: body}, nil
}

// replayedOr returns what is stored if that is what stood in the way, else the error.
func replayedOr[T any](op Op, err error) (result T, replayed bool, _ error) {
	if errors.Is(err, errReused) {
		return result, false, &ReusedError{Name: op.Name, Key: op.Key}
	}
	known, ok := errors.AsType[*answered](err)
	switch {
	case !ok:
		return result, false, err
	case known.record.Failed != nil:
		return result, true, known.record.Failed
	}
	if err := json.Unmarshal(known.record.Body, &result); err != nil {
		return result, true, fmt.Errorf("idempotency: %s: the stored result: %w", op.Name, err)
	}
	return result, true, nil
}

// DoTx is Do for a function whose effects are all in tx: they and the result are one commit, so that no crash repeats anything. It takes no
// lease: of several at once each may run fn, as Transact may run it again, and one commits; the others return its result. So Config.Wait means nothing here, and
// *pawl.HeldError does not occur. When fn fails with a pawl.NonRetryable error, that is stored, and nothing that fn wrote.
//
// It returns *ReusedError, *pawl.ArgumentError, *StoredError, the error of fn, and those of pawl.Transact. Use one of Do and DoTx for operations of one name: DoTx does not
// look whether somebody runs Do.
func DoTx[T any](ctx context.Context, k *Keys, op Op, fn func(ctx context.Context, tx *pawl.Tx) (T, error)) (result T, replayed bool, err error) {
	id, print, err := op.ids()
	if err == nil && fn == nil {
		err = &pawl.ArgumentError{Argument: "DoTx", Reason: "nil function"}
	}
	if err != nil {
		return result, false, err
	}
	var done T
	var failed error // of fn, and stored
	err = pawl.Transact(ctx, k.rt, func(ctx context.Context, tx *pawl.Tx) error {
		var zero T
		done, failed = zero, nil
		scope := records.Scope(tx, id)
		now, err := scope.Snapshot(ctx)
		if err != nil {
			return err
		}
		opts := []pawl.Option{pawl.WithTTL(k.config.TTL)}
		if r := now.ReadOnly(); r == nil {
			opts = append(opts, pawl.IfAbsent()) // also where somebody wanted the key forgotten
		} else if err := r.open(print); err != nil {
			return err
		}
		err = pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) (err error) {
			done, err = fn(ctx, tx)
			return err
		})
		r, unstorable := outcome(done, err)
		if r == nil {
			return either(err, unstorable)
		}
		failed = err
		r.Print, r.Done = print, true
		_, err = scope.SetState(ctx, *r, opts...)
		return err
	})
	if err != nil {
		return replayedOr[T](op, err)
	}
	return done, false, failed
}

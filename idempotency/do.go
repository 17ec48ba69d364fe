package idempotency

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
)

// Op names an operation for Do and DoTx.
type Op struct {
	Principal string // owner of the key; may be empty
	Name      string // the operation, as a route is for requests
	Key       string // made from the cause, such as the id of a message; at most MaxKey characters
	Input     any    // compared as JSON: a key stands for one input
}

// ids returns the id of op's record and the fingerprint of its input.
func (op Op) ids() (id, fingerprint string, err error) {
	switch {
	case op.Name == "" || op.Key == "":
		return "", "", &pawl.ArgumentError{Argument: "Op", Reason: "name or key is empty"}
	case utf8.RuneCountInString(op.Key) > MaxKey:
		return "", "", &pawl.LimitError{Scope: pawl.Key{Kind: records.Name, ID: op.Name}, What: "key", Limit: MaxKey,
			Got: utf8.RuneCountInString(op.Key), Reason: fmt.Sprintf("1 to %d characters", MaxKey)}
	}
	input, err := json.Marshal(op.Input)
	if err != nil {
		return "", "", &pawl.ArgumentError{Argument: "Op.Input", Reason: err.Error()}
	}
	return recordID("do", op.Principal, op.Name, op.Key), hash(string(input)), nil
}

// Do runs fn once per key and returns its result. A repeat returns the stored result, with replayed
// true. The result is stored as JSON. An error or a panic of fn frees the key. An error that is
// pawl.NonRetryable is stored instead, and a repeat returns it as *StoredError.
//
// Fn's context ends with ctx, and when the lease of the key is lost; a commit with it is refused
// after that. If the process dies before the result is stored, fn runs again once the lease has
// expired. So fn's effects should be safe to repeat, or be made by DoTx.
//
// Do returns an error that wraps *pawl.HeldError, and names operation and key, while fn runs
// elsewhere for longer than Config.Wait; *ReusedError for another input; *pawl.LimitError for a key
// that is too long; *pawl.ArgumentError for an invalid Op or a nil fn; pawl.ErrOutsideTx inside a
// transaction; *pawl.LeaseLostError, with the zero result, when the lease was lost before fn started;
// and errors of the store.
//
// If fn ran and its result could not be stored, Do returns the result and an error:
// *pawl.LeaseLostError, *pawl.LimitError for a result that is too large, an error of the JSON
// encoding, or an error of the store. Another run may return another result then.
func Do[T any](ctx context.Context, k *Keys, op Op, fn func(ctx context.Context) (T, error)) (result T, replayed bool, err error) {
	id, fingerprint, err := op.ids()
	if err == nil && fn == nil {
		err = &pawl.ArgumentError{Argument: "Do", Reason: "nil function"}
	}
	if err != nil {
		return result, false, err
	}
	a, err := k.claim(ctx, id, fingerprint)
	if err != nil {
		return replayedOr[T](op, err)
	}
	lost := a.run(ctx, func(ctx context.Context) {
		result, err = fn(ctx)
		r, storeErr := outcome(result, err)
		if storeErr == nil && r != nil {
			storeErr = a.store(*r)
		}
		if known, ok := errors.AsType[*answered](storeErr); ok { // DoTx with the same key
			result, replayed, err = replayedOr[T](op, known)
		} else if storeErr != nil {
			if err != nil { // NonRetryable, but not stored: another run may succeed
				storeErr = fmt.Errorf("%w; error of the function: %v", storeErr, err)
			}
			err = storeErr
		}
	})
	if lost != nil { // fn did not run
		return result, false, lost
	}
	return result, replayed, err
}

// outcome returns the record of a run; nil: the run frees the key.
func outcome(result any, err error) (*record, error) {
	if err != nil {
		if !pawl.IsNonRetryable(err) {
			return nil, nil
		}
		return &record{Failed: &StoredError{Was: pawl.Code(err), Status: pawl.HTTPStatus(err), Text: err.Error()}}, nil
	}
	body, err := json.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("idempotency: encode result: %w", err)
	}
	return &record{Body: body}, nil
}

// replayedOr returns the stored result or error if err is *answered, and err otherwise. It names
// the operation in an error that only knows the record's id.
func replayedOr[T any](op Op, err error) (result T, replayed bool, _ error) {
	if errors.Is(err, errReused) {
		return result, false, &ReusedError{Name: op.Name, Key: op.Key}
	}
	if held, ok := errors.AsType[*pawl.HeldError](err); ok {
		return result, false, &runningError{op.Name, op.Key, held}
	}
	known, ok := errors.AsType[*answered](err)
	switch {
	case !ok:
		return result, false, err
	case known.record.Failed != nil:
		return result, true, known.record.Failed
	}
	if err := json.Unmarshal(known.record.Body, &result); err != nil {
		return result, true, fmt.Errorf("idempotency: %s: decode stored result: %w", op.Name, err)
	}
	return result, true, nil
}

// DoTx is Do for a function whose effects are all in tx. The effects and the result are one commit,
// so a crash repeats nothing.
//
// DoTx takes no lease. Of several concurrent calls each may run fn, as Transact may run it again;
// one commits, and the others return its result. So there is nothing to wait for: Config.Wait does
// not apply, and *pawl.HeldError does not occur. When fn fails with a pawl.NonRetryable error, the
// error is stored and fn's writes are not.
//
// DoTx returns *ReusedError, *pawl.LimitError, *pawl.ArgumentError, *StoredError, the error of fn,
// and those of pawl.Transact. Use either Do or DoTx for operations of one name: DoTx does not test
// whether a Do is running.
func DoTx[T any](ctx context.Context, k *Keys, op Op, fn func(ctx context.Context, tx *pawl.Tx) (T, error)) (result T, replayed bool, err error) {
	id, fingerprint, err := op.ids()
	if err == nil && fn == nil {
		err = &pawl.ArgumentError{Argument: "DoTx", Reason: "nil function"}
	}
	if err != nil {
		return result, false, err
	}
	var done T
	var failed error // the error of fn that was stored; nil: none
	var known error  // *answered or errReused, which end the transaction without an error; nil: none
	err = pawl.Transact(ctx, k.rt, func(ctx context.Context, tx *pawl.Tx) error {
		var zero T
		done, failed, known = zero, nil, nil
		scope := records.Scope(tx, id)
		now, err := scope.Snapshot(ctx)
		if err != nil {
			return err
		}
		opts := []pawl.CallOption{pawl.WithTTL(k.config.TTL)}
		if r := now.ReadOnly(); r == nil {
			opts = append(opts, pawl.IfAbsent()) // the record may be a tombstone: deleting it makes its key new
		} else if known = r.claimable(fingerprint); known != nil {
			return nil // an observer must not get a Failed event for a replay
		}
		err = pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) (err error) {
			done, err = fn(ctx, tx)
			return err
		})
		r, encodeErr := outcome(done, err)
		if r == nil {
			return cmp.Or(err, encodeErr)
		}
		failed = err
		r.Fingerprint, r.Done = fingerprint, true
		_, err = scope.SetState(ctx, *r, opts...)
		return err
	})
	if err = cmp.Or(err, known); err != nil {
		return replayedOr[T](op, err)
	}
	return done, false, failed
}

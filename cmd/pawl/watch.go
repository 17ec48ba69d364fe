package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/persist"
)

// How often a watch looks without a hint: the hints of a process that died may be missing, and some
// stores have none.
const (
	lookWithHints    = 10 * time.Second
	lookWithoutHints = time.Second
)

func (a *app) watchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "watch KIND | KIND/ID | KIND ID",
		Short: "Print changes of a record, or of all records of a kind, as they come",
		Long: `Print the changes of a record, or of all records of a kind, as they come, until
interrupted. Several quick changes of a record may be printed as one, with the
last version. A change of nothing but the end of a lease is not printed. The
exit code after an interrupt is 0.`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeKinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			key := persist.Key{Kind: args[0]}
			if len(args) == 2 || strings.Contains(args[0], "/") {
				var err error
				if key, err = keyOf(args); err != nil {
					return err
				}
			}
			if key.Kind == "" {
				return misused("KIND must not be empty")
			}
			return a.withStore(cmd.Context(), false, func(store persist.Store) error {
				w := &watch{app: a, store: store, key: key, known: make(map[string]mark), wake: make(chan struct{}, 1)}
				err := w.run(cmd.Context())
				if cmd.Context().Err() != nil && !errors.Is(err, errOutput) {
					return nil
				}
				return err
			})
		},
	}
}

// mark is the state in which a record was seen.
type mark struct {
	version, token uint64
	state          string // empty: absent
}

// watch prints the changes of a record, or of a kind if key has no id.
type watch struct {
	app   *app
	store persist.Store
	key   persist.Key
	show  func(context.Context, persist.Record) error // shows a change; nil: print
	begun func(context.Context) error                 // called once changes are noticed; nil: nothing
	known map[string]mark                             // by id
	down  bool                                        // the store did not answer the last time

	wake chan struct{} // has one place: there are hints

	mu    sync.Mutex      // protects the rest
	all   bool            // any record may have changed
	hints map[string]bool // ids of records that have changed
}

// run prints changes until ctx ends. What is there before is noted and not printed. The first hint
// of the store says that any record may have changed, so no change is missed in between.
func (w *watch) run(ctx context.Context) error {
	if err := w.lookAtAll(ctx, func(persist.Record) error { return nil }); err != nil {
		return err
	}
	if w.begun != nil {
		if err := w.begun(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(w.app.errOut, "pawl: watching %s\n", visible(strings.TrimSuffix(w.key.String(), "/")))
	interval, ended := lookWithoutHints, make(chan error, 1)
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	if watcher, ok := w.store.(persist.Watcher); ok {
		interval = lookWithHints
		go func() { ended <- watcher.Watch(watching, w.hint) }()
		defer func() { cancel(); <-ended }()
	} else {
		close(ended)
	}
	for {
		pause := interval
		if w.down {
			pause = lookWithoutHints
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-w.wake:
		case <-timer.C:
			w.hint(persist.Hint{})
		case err := <-watcherEnded(ended, interval):
			ended <- err // for the deferred function
			if !errors.Is(err, persist.ErrUnsupported) {
				return err
			}
			interval = lookWithoutHints // as behind a proxy that pools connections by transaction
		}
		timer.Stop()
		if err := w.look(ctx); err != nil {
			return err
		}
	}
}

// watcherEnded returns the channel with the error of Watch, and nil if hints are not waited for.
func watcherEnded(ended chan error, interval time.Duration) <-chan error {
	if interval == lookWithHints {
		return ended
	}
	return nil
}

// hint notes a hint of the store.
func (w *watch) hint(h persist.Hint) {
	w.mu.Lock()
	switch {
	case h.Key == persist.Key{}:
		w.all = true
	case h.Kind != w.key.Kind || w.key.ID != "" && h.ID != w.key.ID:
		w.mu.Unlock()
		return
	default:
		if w.hints == nil {
			w.hints = make(map[string]bool)
		}
		w.hints[h.ID] = true
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// look prints the changes of the records that hints name. If the store does not answer, it says so
// once and looks at all records later.
func (w *watch) look(ctx context.Context) error {
	w.mu.Lock()
	all, hints := w.all, w.hints
	w.all, w.hints = false, nil
	w.mu.Unlock()
	show := w.print
	if w.show != nil {
		show = func(r persist.Record) error { return w.show(ctx, r) }
	}
	var err error
	if all {
		err = w.lookAtAll(ctx, show)
	} else {
		for id := range hints {
			if err = w.lookAt(ctx, id, show); err != nil {
				break
			}
		}
	}
	if errors.Is(err, persist.ErrUnavailable) {
		if !w.down {
			fmt.Fprintf(w.app.errOut, "pawl: %s; waiting\n", message(err))
		}
		w.down = true
		w.mu.Lock()
		w.all = true
		w.mu.Unlock()
		return nil
	}
	w.down = false
	return errors.Join(err, w.app.out.flush())
}

// lookAtAll calls changed with all records that have changed.
func (w *watch) lookAtAll(ctx context.Context, changed func(persist.Record) error) error {
	if w.key.ID != "" {
		return w.lookAt(ctx, w.key.ID, changed)
	}
	listed := make(map[string]bool)
	err := each(ctx, w.store, persist.Query{Kind: w.key.Kind}, func(records []persist.Record) error {
		for _, r := range records {
			listed[r.ID] = true
			if err := w.note(r, changed); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for id, m := range w.known {
		if m.state == "alive" && !listed[id] {
			if err := w.lookAt(ctx, id, changed); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookAt calls changed if the record of an id has changed.
func (w *watch) lookAt(ctx context.Context, id string, changed func(persist.Record) error) error {
	key := persist.Key{Kind: w.key.Kind, ID: id}
	r, err := w.store.Load(ctx, key)
	if errors.Is(err, persist.ErrNotFound) {
		delete(w.known, id) // never written, or purged after it was printed as deleted
		return nil
	}
	if err != nil {
		return fmt.Errorf("load %q: %w", key, err)
	}
	return w.note(r, changed)
}

// note calls changed if r is not known yet.
func (w *watch) note(r persist.Record, changed func(persist.Record) error) error {
	m := mark{r.Version, r.Lease.Token, state(r)}
	if w.known[r.ID] == m {
		return nil
	}
	if err := changed(r); err != nil {
		return err
	}
	w.known[r.ID] = m
	return nil
}

// print prints a record on one line.
func (w *watch) print(r persist.Record) error {
	if w.app.out.json {
		return w.app.out.value(seen(r))
	}
	var doc bytes.Buffer
	if len(r.Doc) > 0 {
		if err := json.Compact(&doc, r.Doc); err != nil {
			return fmt.Errorf("document of %q: %w", r.Key, err)
		}
	}
	return w.app.out.printf("%s %s version %d %s lease %s %s\n", stamp(r.Updated), visible(r.Key.String()), r.Version, state(r), lease(r), visibleJSON(doc.Bytes()))
}

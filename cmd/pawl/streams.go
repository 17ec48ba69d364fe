package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

func (a *app) streamsCommand() *cobra.Command {
	var prefix string
	var limit int
	e := eventReader{app: a}
	cmd := &cobra.Command{
		Use:   "streams [STREAM]",
		Short: "List streams, or read the events of one",
		Long: `List the streams of a log, or read the events of one: the last --last of them,
or those from version --from on. --follow goes on with new events until
interrupted, and waits for a store that is down.`,
		Example: `  pawl streams --prefix ann/
  pawl streams ann --last 50
  pawl streams ann --from 0 --json
  pawl streams ann --follow`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			flags := cmd.Flags()
			reads := flags.Changed("last") || flags.Changed("from") || e.follow
			switch {
			case limit < 0 || e.last < 1 || flags.Changed("from") && e.from < 0:
				return misused("--limit and --from must not be negative, and --last must be above 0")
			case len(args) == 0 && reads:
				return misused("name a STREAM: these flags are about its events")
			case len(args) == 1 && (prefix != "" || limit != 0):
				return misused("give a STREAM, or flags that select streams")
			case len(args) == 0:
				v := shownView{View: inspect.Streams(e.log), limit: limit}
				v.Query.Prefix = prefix
				return a.withStore(cmd.Context(), false, func(store persist.Store) error { return a.showView(cmd.Context(), store, v) })
			}
			e.stream = args[0]
			return a.withStore(cmd.Context(), false, func(store persist.Store) error {
				e.plain, e.store = store, persist.Logs(store)
				return e.run(cmd.Context())
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&e.log, "log", stream.DefaultName, "name of the log: stream.Config.Name")
	flags.StringVar(&prefix, "prefix", "", "only streams whose names start with this")
	flags.IntVar(&limit, "limit", 0, "at most this many streams (0: all)")
	flags.IntVar(&e.last, "last", 20, "the last events, this many")
	flags.Int64Var(&e.from, "from", -1, "all events from this version on")
	flags.BoolVar(&e.follow, "follow", false, "go on with new events until interrupted")
	cmd.MarkFlagsMutuallyExclusive("last", "from")
	return cmd
}

func (a *app) reactionsCommand() *cobra.Command {
	var log string
	var blocked bool
	var limit int
	cmd := &cobra.Command{
		Use:   "reactions [STREAM]",
		Short: "Show where reactions to streams stand, and what blocks them",
		Long: `Show where the reactions to the streams of a log stand: their next event, how
many events they lag behind, failures, and why they are blocked.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return misused("--limit must not be negative")
			}
			v := shownView{View: inspect.Reactions(log, nil), limit: limit}
			v.keep = func(r inspect.Record) bool {
				return (len(args) == 0 || r.Text("stream") == args[0]) && (!blocked || isBlocked(r))
			}
			return a.withStore(cmd.Context(), false, func(store persist.Store) error {
				v.fill = func(ctx context.Context, r inspect.Record, cells map[string]string) error {
					lag, err := lagOf(ctx, store, log, r)
					cells["Lag"] = strconv.FormatInt(lag, 10)
					return err
				}
				return a.showView(cmd.Context(), store, v)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&log, "log", stream.DefaultName, "name of the log: stream.Config.Name")
	flags.BoolVar(&blocked, "blocked", false, "only those that are blocked")
	flags.IntVar(&limit, "limit", 0, "at most this many (0: all)")
	return cmd
}

// isBlocked reports whether a position is blocked. Its label is a state, a slash and a reaction.
func isBlocked(r inspect.Record) bool {
	label := r.Text("label")
	return len(label) >= len("blocked/") && label[:len("blocked/")] == "blocked/"
}

// lagOf returns how many events of its stream a position has not handled. A position of a stream that
// was deleted lags behind nothing.
func lagOf(ctx context.Context, store persist.Store, log string, r inspect.Record) (int64, error) {
	key := persist.Key{Kind: log, ID: r.Text("stream")}
	head, err := loadHead(ctx, store, key)
	if err != nil || head.Life != r.Text("life") {
		return 0, err
	}
	return max(head.Next-max(r.Number("next"), head.First), 0), nil
}

// streamHead is the document of a stream.
type streamHead struct {
	Life  string `json:"life"` // empty: there is no stream
	Next  int64  `json:"next"`
	First int64  `json:"first"`
}

// loadHead returns the head of a stream.
func loadHead(ctx context.Context, store persist.Store, key persist.Key) (head streamHead, err error) {
	r, err := store.Load(ctx, key)
	if errors.Is(err, persist.ErrNotFound) || err == nil && r.Gone(r.Now) {
		return head, nil
	}
	if err == nil {
		err = json.Unmarshal(r.Doc, &head)
	}
	if err != nil {
		err = fmt.Errorf("stream %q: %w", key.ID, err)
	}
	return head, err
}

// seenEvent is an event as --json prints it.
type seenEvent struct {
	Stream  string          `json:"stream"`
	Version uint64          `json:"version"`
	At      time.Time       `json:"at"`
	Type    string          `json:"type"`
	Data    json.RawMessage `json:"data"`
	Meta    json.RawMessage `json:"meta,omitempty"`
}

// eventReader prints the events of a stream.
type eventReader struct {
	app    *app
	plain  persist.Store // store, with its hints
	store  persist.Logger
	log    string
	stream string
	last   int   // how many events to begin with
	from   int64 // the version to begin with; below 0: last decides
	follow bool

	life string // of the stream whose events were printed
	next uint64 // the version of the next event to print
}

func (e *eventReader) key() persist.Key { return persist.Key{Kind: e.log, ID: e.stream} }

// run prints the events, and with follow also new ones until ctx ends.
func (e *eventReader) run(ctx context.Context) error {
	if !e.follow {
		return e.begin(ctx)
	}
	w := &watch{app: e.app, store: e.plain, key: e.key(), known: make(map[string]mark), wake: make(chan struct{}, 1)}
	w.begun = func(ctx context.Context) error {
		if err := e.begin(ctx); err != nil && !isNegative(err) { // a stream that is not there yet is waited for
			return err
		}
		return e.app.out.flush()
	}
	w.show = func(ctx context.Context, _ persist.Record) error { return e.goOn(ctx) }
	err := w.run(ctx)
	if ctx.Err() != nil && !errors.Is(err, errOutput) {
		return nil
	}
	return err
}

func isNegative(err error) bool {
	var coded *codedError
	return errors.As(err, &coded) && coded.code == exitNegative
}

// begin prints the events that are there.
func (e *eventReader) begin(ctx context.Context) error {
	head, err := loadHead(ctx, e.store, e.key())
	if err != nil {
		return err
	}
	if head.Life == "" {
		return negative("no stream %q in the log %q", e.stream, e.log)
	}
	e.life, e.next = head.Life, uint64(max(e.from, head.First))
	if e.from < 0 {
		e.next = uint64(max(head.Next-int64(e.last), head.First))
	}
	return e.print(ctx)
}

// goOn prints the events after those that were printed. A stream that was deleted and made again
// starts over.
func (e *eventReader) goOn(ctx context.Context) error {
	head, err := loadHead(ctx, e.store, e.key())
	if err != nil || head.Life == "" {
		return err
	}
	if head.Life != e.life {
		e.life, e.next = head.Life, uint64(head.First)
	}
	return e.print(ctx)
}

// print prints all events from next on.
func (e *eventReader) print(ctx context.Context) error {
	for {
		entries, err := e.store.ReadLog(ctx, persist.LogQuery{Key: e.key(), From: e.next})
		if err != nil {
			return fmt.Errorf("events of stream %q: %w", e.stream, err)
		}
		if len(entries) == 0 {
			return nil
		}
		for _, entry := range entries {
			if err := e.event(entry); err != nil {
				return err
			}
			e.next = entry.Number + 1
		}
	}
}

// event prints an event.
func (e *eventReader) event(entry persist.LogEntry) error {
	shown := seenEvent{Stream: e.stream, Version: entry.Number, At: entry.At}
	if err := json.Unmarshal(entry.Data, &shown); err != nil {
		return fmt.Errorf("event %d of stream %q: %w", entry.Number, e.stream, err)
	}
	shown.Stream, shown.Version, shown.At = e.stream, entry.Number, entry.At
	if e.app.out.json {
		return e.app.out.value(shown)
	}
	meta := ""
	if len(shown.Meta) > 0 {
		meta = " " + string(visibleJSON(slices.Clone(shown.Meta)))
	}
	return e.app.out.printf("%d %s %s %s%s\n", shown.Version, stamp(shown.At), visible(shown.Type), visibleJSON(shown.Data), meta)
}

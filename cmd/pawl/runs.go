package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/persist"
)

func (a *app) runsCommand() *cobra.Command {
	var states []string
	var definition, workspace string
	var limit int
	cmd := &cobra.Command{
		Use:   "runs [ID]",
		Short: "List durable runs, or show one with its steps and signals",
		Long: `List the runs of package flow/run with their status, current step, attempts and
next time, or show one run: its steps with their attempts and errors, its state,
and the signals that no step has received.`,
		Example: `  pawl runs --state failed --state parked
  pawl runs --workspace tenant7 --definition order
  pawl runs default/JAE54JPIWRE3FFKTTBFVPLP3WA`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			v := shownView{View: inspect.Runs(nil), limit: limit}
			for i, s := range states {
				states[i] = strings.ToUpper(s)
				if !slices.Contains(runStates, states[i]) {
					return misused("--state must be one of %s, got %q", strings.ToLower(strings.Join(runStates, ", ")), s)
				}
			}
			switch {
			case limit < 0:
				return misused("--limit must not be negative")
			case len(args) == 1 && (len(states) > 0 || definition != "" || workspace != "" || limit != 0):
				return misused("give an ID, or flags that select runs")
			case len(args) == 1:
				return a.withStore(cmd.Context(), false, func(store persist.Store) error { return a.showRun(cmd.Context(), store, args[0]) })
			}
			if workspace != "" {
				v.Query.Prefix = url.QueryEscape(workspace) + "/"
			}
			v.keep = func(r inspect.Record) bool {
				state := r.Text("status")
				if r.Text("parked") != "" {
					state = "PARKED"
				}
				return (len(states) == 0 || slices.Contains(states, state)) && (definition == "" || r.Text("definition") == definition)
			}
			return a.withStore(cmd.Context(), false, func(store persist.Store) error { return a.showView(cmd.Context(), store, v) })
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&states, "state", nil, "only runs in this state: "+strings.ToLower(strings.Join(runStates, ", "))+"; repeat it for others")
	flags.StringVar(&definition, "definition", "", "only runs of this definition")
	flags.StringVar(&workspace, "workspace", "", "only runs of this workspace")
	flags.IntVar(&limit, "limit", 0, "at most this many runs (0: all)")
	return cmd
}

// runStates are the statuses of runs. A parked run is PENDING.
var runStates = []string{"PENDING", "RUNNING", "WAITING", "COMPLETED", "FAILED", "CANCELED", "PARKED"}

// waitingSignal is a signal that no step has received.
type waitingSignal struct {
	Name   string          `json:"name"`
	Number int             `json:"number"`
	Data   json.RawMessage `json:"data,omitempty"`
}

// showRun prints a run with its steps and signals.
func (a *app) showRun(ctx context.Context, store persist.Store, id string) error {
	stored, err := store.Load(ctx, persist.Key{Kind: "run", ID: id})
	if errors.Is(err, persist.ErrNotFound) || err == nil && stored.Gone(stored.Now) {
		return negative("no run %q", id)
	}
	if err != nil {
		return fmt.Errorf("load run %q: %w", id, err)
	}
	signals, err := signalsOf(ctx, store, id)
	if err != nil {
		return err
	}
	if a.out.json {
		return a.out.value(struct {
			seenRecord
			Signals []waitingSignal `json:"signals"`
		}{seen(stored), signals})
	}
	r, err := inspect.RecordOf(stored)
	if err != nil {
		return fmt.Errorf("document of %q: %w", stored.Key, err)
	}
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(table, "%s\t%s\n", name, dash(value)) }
	line("id", id)
	for _, f := range [][2]string{{"definition", "definition"}, {"workspace", "workspace"}, {"key", "key"}, {"status", "status"}, {"parked", "parked"},
		{"awaits", "awaits"}, {"step", "currentStepName"}, {"created", "createdAt"}, {"finished", "finishedAt"}, {"next", "due"}, {"error", "error"}} {
		line(f[0], r.Text(f[1]))
	}
	line("lease", lease(stored))
	fmt.Fprintln(table, "\nSTEP\tSTATUS\tATTEMPTS\tVISITS\tNEXT\tERROR")
	for _, s := range r.List("steps") {
		attempts, status := s.Number("attempts"), s.Text("status")
		if s.Text("name") == r.Text("currentStepName") && r.Text("status") == "RUNNING" {
			attempts, status = r.Number("attempts"), "RUNNING"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\n", visible(s.Text("name")), visible(status), attempts, s.Number("visits"), dash(s.Text("nextAttempt")), dash(s.Text("error")))
	}
	if len(signals) > 0 {
		fmt.Fprintln(table, "\nSIGNAL\tNUMBER\tDATA")
	}
	for _, s := range signals {
		fmt.Fprintf(table, "%s\t%d\t%s\n", visible(s.Name), s.Number, visibleJSON(s.Data))
	}
	var state bytes.Buffer
	if err := json.Indent(&state, []byte(r.Text("state")), "", "  "); err != nil {
		return fmt.Errorf("state of run %q: %w", id, err)
	}
	return errors.Join(outputError(table.Flush()), a.out.printf("\n%s\n", visibleJSON(state.Bytes())))
}

// signalsOf returns the signals of a run that no step has received.
func signalsOf(ctx context.Context, store persist.Store, id string) ([]waitingSignal, error) {
	all := []waitingSignal{}
	err := each(ctx, store, persist.Query{Kind: "run.signal", Prefix: id + "/"}, func(records []persist.Record) error {
		for _, r := range records {
			var inbox struct {
				Messages []waitingSignal `json:"messages"`
			}
			if err := json.Unmarshal(r.Doc, &inbox); err != nil {
				return fmt.Errorf("document of %q: %w", r.Key, err)
			}
			all = append(all, inbox.Messages...)
		}
		return nil
	})
	return all, err
}

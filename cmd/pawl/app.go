package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/open"
)

// Variable names the environment variable that stands for --store.
const Variable = "PAWL_STORE"

// app is one run of the program.
type app struct {
	schemes open.Schemes
	in      io.Reader
	out     *output
	errOut  io.Writer

	settling time.Duration // how long rm tries to learn the outcome of a commit

	location string // --store
	migrate  bool   // --migrate

	started bool   // the arguments were accepted
	hint    string // what to do after an error
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "pawl",
		Short: "Look at stores of Pawl, move them and check them",
		Long: `Look at stores of Pawl, move them and check them.

A store is given by --store, or by the environment variable ` + Variable + `:
  sqlite:chat.db                        an SQLite file
  dir:./data                            plain files in a directory
  postgres://user:secret@host/database  PostgreSQL
  etcd://host:2379,host2:2379/prefix    an etcd cluster

Only copy and import create a store. A store that this release would migrate is
left alone without --migrate.

Exit codes: 0 done; 1 negative answer (not found, findings, refused); 2 usage;
3 store missing, unavailable or damaged; 4 store of a newer or older schema;
5 outcome unknown; 6 output not written; 130 interrupted.`,
		Example: `  pawl ls --store sqlite:chat.db
  pawl ls session --label open --json
  pawl get session/ann
  pawl runs --state failed
  pawl streams ann --follow
  pawl erase --id ann --prefix ann/
  pawl copy sqlite:chat.db postgres://ann:secret@localhost/chat
  pawl export >backup.jsonl
  pawl doctor`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	flags := root.PersistentFlags()
	flags.StringVar(&a.location, "store", os.Getenv(Variable), "location of the store (default $"+Variable+")")
	flags.Lookup("store").DefValue = "" // help does not show what may contain a password
	flags.BoolVar(&a.out.json, "json", false, "print JSON, one value per line")
	flags.BoolVar(&a.migrate, "migrate", false, "migrate a store of an older release")
	for _, cmd := range []*cobra.Command{a.lsCommand(), a.getCommand(), a.watchCommand(), a.runsCommand(),
		a.streamsCommand(), a.reactionsCommand(), a.rmCommand(), a.eraseCommand(), a.copyCommand(), a.exportCommand(),
		a.importCommand(), a.doctorCommand(), a.inspectCommand()} {
		run := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.started = true
			return run(cmd, args)
		}
		root.AddCommand(cmd)
	}
	return root
}

// withStore opens the store that --store names, runs fn with it and closes it.
func (a *app) withStore(ctx context.Context, create bool, fn func(persist.Store) error) error {
	if a.location == "" {
		return misused("no store: set --store or %s, for example --store sqlite:chat.db", Variable)
	}
	return a.with(ctx, a.location, create, fn)
}

// with opens the store at a location, runs fn with it and closes it. It creates a missing store if
// create is set.
func (a *app) with(ctx context.Context, location string, create bool, fn func(persist.Store) error) error {
	if err := a.schemes.Check(location); err != nil {
		return err
	}
	store, err := a.schemes.Open(ctx, location, open.Options{Existing: true})
	if create && errors.Is(err, persist.ErrMissingStore) || a.migrate && errors.Is(err, persist.ErrOlderSchema) {
		store, err = a.schemes.Open(ctx, location, open.Options{})
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", open.Redacted(location), err)
	}
	err = fn(store)
	if closing := store.Close(); closing != nil {
		err = errors.Join(err, fmt.Errorf("store %s: close: %w", open.Redacted(location), closing))
	}
	return err
}

// keyOf returns the key that arguments name: KIND/ID, or KIND and ID.
func keyOf(args []string) (persist.Key, error) {
	kind, id, _ := strings.Cut(args[0], "/")
	if len(args) == 2 {
		kind, id = args[0], args[1]
	}
	if kind == "" || id == "" {
		return persist.Key{}, misused("want KIND/ID, or KIND and ID as two arguments, got %q", strings.Join(args, " "))
	}
	return persist.Key{Kind: kind, ID: id}, nil
}

// completeKinds completes the name of a kind.
func (a *app) completeKinds(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var kinds []string
	if len(args) == 0 {
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
		defer cancel()
		_ = a.withStore(ctx, false, func(store persist.Store) error {
			d, err := describe(ctx, store)
			for _, k := range d.Kinds {
				if visible(k.Kind) == k.Kind {
					kinds = append(kinds, k.Kind)
				}
			}
			return err
		})
	}
	return kinds, cobra.ShellCompDirectiveNoFileComp
}

// describe returns the description of a store. It returns persist.ErrUnsupported if the store has
// none.
func describe(ctx context.Context, store persist.Store) (persist.Description, error) {
	if describer, ok := store.(persist.Describer); ok {
		return describer.Describe(ctx)
	}
	return persist.Description{}, fmt.Errorf("describe: %w", persist.ErrUnsupported)
}

// floorOf returns the version floor and the time of a store. An absent key shows both.
func floorOf(ctx context.Context, store persist.Store) (floor uint64, now time.Time, err error) {
	r, err := store.Load(ctx, persist.Key{Kind: "pawl.cli", ID: rand.Text()})
	if !errors.Is(err, persist.ErrNotFound) {
		return 0, time.Time{}, fmt.Errorf("version floor: %w", err)
	}
	return r.Version, r.Now, nil
}

// each calls fn with the pages of records that match q.
func each(ctx context.Context, store persist.Store, q persist.Query, fn func([]persist.Record) error) error {
	for {
		page, err := store.List(ctx, q)
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		if err := fn(page.Records); err != nil {
			return err
		}
		if page.Next == "" {
			return nil
		}
		q.After = page.Next
	}
}

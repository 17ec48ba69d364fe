package main

import (
	"context"
	"io"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// exportAttempts is how often export copies a store that changes meanwhile.
const exportAttempts = 3

func (a *app) exportCommand() *cobra.Command {
	var skip bool
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a whole store as JSON lines",
		Long: `Write a whole store as JSON lines to the standard output: a head, one line for
each record and log entry, and an end line that counts them. pawl import reads
it.

The store is first copied to a temporary SQLite file (in $TMPDIR) and compared.
If nothing differs, the export shows the store as it was at one moment. Writers
may run; a store that changes all the time is refused with exit code 1 after
three attempts. --skip-verify takes it as it comes: each record is whole, but
they may be of different moments.`,
		Example: `  pawl export --store sqlite:chat.db | gzip >chat.jsonl.gz`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return withTemporary(ctx, func(copied *sqlite.Store) error {
				err := a.withStore(ctx, false, func(from persist.Store) error { return a.fetch(ctx, from, copied, skip) })
				if err != nil {
					return err
				}
				return writeLines(ctx, copied, a.out)
			})
		},
	}
	cmd.Flags().BoolVar(&skip, "skip-verify", false, "do not compare the copy with the store")
	return cmd
}

// fetch copies a store to a temporary one until both are equal.
func (a *app) fetch(ctx context.Context, from, to persist.Store, skip bool) error {
	// The times stay those of the source's clock, whatever the clock of this machine says.
	opts := persist.CopyOptions{SkipVerify: skip, PageSize: 500, MaxSkew: math.MaxInt64}
	finish := a.showProgress(ctx, from, &opts)
	defer finish()
	for attempt := 1; ; attempt++ {
		report, err := persist.Copy(ctx, from, to, opts)
		switch {
		case err == nil:
			return nil
		case report.Differing+report.Logs.Differing == 0 || ctx.Err() != nil:
			return err
		case attempt == exportAttempts:
			return negative("the store changed during each of %d attempts; stop its writers, or use --skip-verify: %w", attempt, err)
		}
	}
}

func (a *app) importCommand() *cobra.Command {
	var skew time.Duration
	cmd := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Read an export into a store",
		Long: `Read an export (FILE, or the standard input) into a store, which is created if it
is missing, and compare both. Records keep versions, times, leases and commits.

The export is read to its end first: nothing is written if it is damaged or not
complete. The store must be empty, or hold only records of the same export, so
that an import that was interrupted can be repeated. Otherwise nothing is
written, and the exit code is 1.`,
		Example: `  gunzip <chat.jsonl.gz | pawl import --store sqlite:restored.db`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case skew <= 0:
				return misused("--max-skew must be above 0")
			case a.location == "":
				return misused("no store: set --store or %s, for example --store sqlite:chat.db", Variable)
			}
			if err := a.schemes.Check(a.location); err != nil { // before the export is read
				return err
			}
			ctx := cmd.Context()
			in, err := a.input(ctx, args)
			if err != nil {
				return err
			}
			defer in.Close()
			return withTemporary(ctx, func(read *sqlite.Store) error {
				if err := readLines(ctx, in, read); err != nil {
					return err
				}
				return a.withStore(ctx, true, func(to persist.Store) error {
					if err := checkTarget(ctx, read, to, true); err != nil {
						return err
					}
					return a.copy(ctx, read, to, persist.CopyOptions{MaxSkew: skew, PageSize: 500})
				})
			})
		},
	}
	cmd.Flags().DurationVar(&skew, "max-skew", time.Second, "largest difference between the clocks of this machine and the store")
	return cmd
}

// input returns the export that the arguments name. Reading the standard input ends with ctx, also if
// nothing comes.
func (a *app) input(ctx context.Context, args []string) (io.ReadCloser, error) {
	if len(args) == 1 && args[0] != "-" {
		file, err := os.Open(args[0])
		if err != nil {
			return nil, misused("export: %w", err)
		}
		return file, nil
	}
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, a.in)
		in.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
	return out, nil
}

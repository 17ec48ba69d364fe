// Package open opens a store by its location, a string for flags and environment variables:
//
//	sqlite:chat.db                        an SQLite file
//	dir:./data                            plain files in a directory
//	postgres://user:secret@host/database  PostgreSQL; postgresql:// too
//
// The part before the first colon is the scheme. [Standard] has these; a program adds schemes of
// other stores to that map.
package open

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// ErrLocation is wrapped by the error for a location that names no store: it is empty, or its scheme
// is missing or unknown.
var ErrLocation = errors.New("open: bad location of a store")

// Options says how a store is opened. The zero value is the default of the stores.
type Options struct {
	// Existing opens only a store that exists and needs no migration, as Config.Existing of the
	// stores does. The errors wrap persist.ErrMissingStore and persist.ErrOlderSchema.
	Existing bool
	// Scheme is the scheme of a location that has none, such as "sqlite" for programs whose users
	// may name a file. Empty: a location needs a scheme.
	Scheme string
}

// Opener opens the store at a location, which contains the scheme. It honours all options or returns
// an error.
type Opener func(ctx context.Context, location string, opts Options) (persist.Store, error)

// Schemes maps schemes to functions that open their stores.
type Schemes map[string]Opener

// Standard returns a new map of the schemes of the stores that come with Pawl.
func Standard() Schemes {
	return Schemes{"sqlite": openSQLite, "dir": openDir, "postgres": openPostgres, "postgresql": openPostgres}
}

// Store opens the store at a location with the schemes of [Standard]. It returns the errors of
// [Schemes.Open].
func Store(ctx context.Context, location string, opts Options) (persist.Store, error) {
	return Standard().Open(ctx, location, opts)
}

// Open opens the store at a location. It returns an error that wraps ErrLocation if the location has
// no scheme of s, and otherwise the errors of the store: persist.ErrUnavailable,
// persist.ErrNewerSchema, and with opts.Existing also persist.ErrMissingStore and
// persist.ErrOlderSchema. No error contains a password.
func (s Schemes) Open(ctx context.Context, location string, opts Options) (persist.Store, error) {
	if opts.Scheme != "" && location != "" && !hasScheme(location) {
		location = opts.Scheme + ":" + location
	}
	if err := s.Check(location); err != nil {
		return nil, err
	}
	scheme, _, _ := strings.Cut(location, ":")
	return s[scheme](ctx, location, opts)
}

// Check returns an error that wraps ErrLocation if the location has no scheme of s. It does not look
// for the store.
func (s Schemes) Check(location string) error {
	scheme, rest, _ := strings.Cut(location, ":")
	_, known := s[scheme]
	switch {
	case location == "":
		return fmt.Errorf("%w: empty", ErrLocation)
	case !hasScheme(location):
		return fmt.Errorf("%w: %q has no scheme; for an SQLite file write %q", ErrLocation, location, "sqlite:"+location)
	case !known:
		return fmt.Errorf("%w: unknown scheme %q, want one of %s", ErrLocation, scheme, strings.Join(slices.Sorted(maps.Keys(s)), ", "))
	case rest == "":
		return fmt.Errorf("%w: %q names no place", ErrLocation, location)
	}
	return nil
}

// hasScheme reports whether a location has a scheme. The letter of a drive is none.
func hasScheme(location string) bool {
	scheme, _, ok := strings.Cut(location, ":")
	return ok && len(scheme) != 1
}

// Redacted returns a location for messages: without the password of a URL, and quoted if it contains
// characters that cannot be printed. Of a location that is neither a path nor a URL it shows the
// scheme only: any part of it may be a password.
func Redacted(location string) string {
	shown := location
	scheme, _, hasScheme := strings.Cut(location, ":")
	if isPath := !hasScheme || len(scheme) == 1 || scheme == "sqlite" || scheme == "dir"; !isPath {
		shown = scheme + ":..."
	}
	if scheme, _, ok := strings.Cut(location, "://"); ok {
		shown = scheme + "://..."
		if u, err := url.Parse(location); err == nil {
			query := u.Query()
			if query.Has("password") {
				query.Set("password", "xxxxx")
				u.RawQuery = query.Encode()
			}
			shown = u.Redacted()
		}
	}
	if quoted := fmt.Sprintf("%q", shown); quoted != `"`+shown+`"` {
		return quoted
	}
	return shown
}

func openSQLite(ctx context.Context, location string, opts Options) (persist.Store, error) {
	store, err := sqlite.Open(ctx, strings.TrimPrefix(location, "sqlite:"), sqlite.Config{Existing: opts.Existing})
	return opened(store, err)
}

func openDir(ctx context.Context, location string, opts Options) (persist.Store, error) {
	store, err := fs.Open(ctx, strings.TrimPrefix(location, "dir:"), fs.Config{Existing: opts.Existing})
	return opened(store, err)
}

func openPostgres(ctx context.Context, location string, opts Options) (persist.Store, error) {
	store, err := postgres.Open(ctx, location, postgres.Config{Existing: opts.Existing})
	return opened(store, err)
}

// opened returns a nil interface with an error, not a nil pointer in an interface.
func opened[S persist.Store](store S, err error) (persist.Store, error) {
	if err != nil {
		return nil, err
	}
	return store, nil
}

// Package scheme lets programs that open a store by its location accept etcd://; see persist/open and
// [etcd.OpenLocation].
package scheme

import (
	"context"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd"
	"github.com/pawl-go/pawl/persist/open"
)

// Add adds the scheme etcd to schemes.
func Add(schemes open.Schemes) { schemes["etcd"] = openEtcd }

func openEtcd(ctx context.Context, location string, opts open.Options) (persist.Store, error) {
	store, err := etcd.OpenLocation(ctx, location, etcd.Config{Existing: opts.Existing})
	if err != nil {
		return nil, err // not a nil *Store in an interface
	}
	return store, nil
}

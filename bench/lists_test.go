package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Every listed page of G4 is complete: a unit fails otherwise.
func TestPages(t *testing.T) {
	for _, store := range []string{inSQLite, inPostgres} {
		t.Run(store, func(t *testing.T) {
			b := benchFor(t)
			if store == inPostgres {
				withPostgres(t, b)
			}
			m, err := b.once(paging(store, 1_000), load{writers: 1, each: 20})
			require.NoError(t, err)
			require.NoError(t, m.err)
			require.EqualValues(t, 20, m.acknowledged)
		})
	}
}

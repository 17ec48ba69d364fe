package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// No contender of P8 and P9 fails or loses a unit that was acknowledged.
func TestClaimedUnits(t *testing.T) {
	for _, store := range []string{inSQLite, inPostgres} {
		for name, open := range map[string]func(b *bench, store string, writers int) (*claims, error){
			"Do": openDo, "middleware": openMiddleware, "key": openKeyClaims, "handler": openKeyHandlers,
			"Fire": openFire, "row": openRowClaims, "flow": openAdmitted, "call": openCallClaims,
		} {
			t.Run(name+" on "+store, func(t *testing.T) {
				b := benchFor(t)
				if store == inPostgres {
					withPostgres(t, b)
				}
				m, err := b.once(claimed(name, store, open), load{writers: 4, each: 10})
				require.NoError(t, err)
				require.NoError(t, m.err)
				require.EqualValues(t, 40, m.acknowledged)
				require.Zero(t, m.lost)
			})
		}
	}
}

package pawltest

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/pawl-go/pawl"
)

// RequireState fails t unless the state of the scope is want. States are compared as JSON, which is
// how stores keep them. So 1 and 1.0 in a pawl.Doc are equal, and unexported fields do not count.
func RequireState[T any](t testing.TB, scope pawl.Scope[T], want T) {
	t.Helper()
	snap := read(t, scope)
	if !snap.Exists() {
		t.Fatalf("pawltest: %s: no state, want %s", scope.Key(), text(want))
	}
	if got := snap.State(); text(got) != text(want) {
		t.Fatalf("pawltest: %s: state is %s at version %d, want %s", scope.Key(), text(got), snap.Version, text(want))
	}
}

// RequireVersion fails t unless the scope is at version want. A scope without state has version 0.
func RequireVersion[T any](t testing.TB, scope pawl.Scope[T], want uint64) {
	t.Helper()
	if snap := read(t, scope); snap.Version != want {
		t.Fatalf("pawltest: %s: version is %d, want %d", scope.Key(), snap.Version, want)
	}
}

// RequireAbsent fails t if the scope has a state. It was never written, deleted, or has expired.
func RequireAbsent[T any](t testing.TB, scope pawl.Scope[T]) {
	t.Helper()
	if snap := read(t, scope); snap.Exists() {
		t.Fatalf("pawltest: %s: state is %s at version %d, want none", scope.Key(), text(snap.State()), snap.Version)
	}
}

// read returns the snapshot of a scope. It fails t if that cannot be read.
func read[T any](t testing.TB, scope pawl.Scope[T]) pawl.Snapshot[T] {
	t.Helper()
	snap, err := scope.Snapshot(t.Context())
	if err != nil {
		t.Fatalf("pawltest: %s: %v", scope.Key(), err)
	}
	return snap
}

// text returns a state as JSON. The keys of maps are sorted, so equal states have equal texts.
func text(state any) string {
	data, err := json.Marshal(state)
	if err != nil {
		return fmt.Sprintf("%#v (%v)", state, err)
	}
	return string(data)
}

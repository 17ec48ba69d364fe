package testkit

import "testing"

// figuresPrefix marks what a test measured. Package internal/proof looks for it.
const figuresPrefix = "figures: "

// Figures logs what a test of faults did, such as "20 kills, 137 changes acknowledged". A test calls
// it before it judges the figures. docs/reliability.md shows those of the last published run.
func Figures(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Logf(figuresPrefix+format, args...)
}

// Package crashtest holds the former names of the child processes of package testkit.
package crashtest

import "github.com/pawl-go/pawl/internal/testkit"

// Variable is [testkit.Variable].
const Variable = testkit.Variable

// Child is [testkit.Process].
type Child = testkit.Process

// The functions of package testkit.
var (
	Start = testkit.Start
	Ready = testkit.Ready
	Begin = testkit.Begin
	Say   = testkit.Say
	Now   = testkit.Now
)

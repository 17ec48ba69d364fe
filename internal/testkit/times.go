package testkit

import (
	"fmt"
	"os"
	"strconv"
)

// Short is true if PAWL_SHORT asks for fewer repetitions, as in CI. It is independent of go test
// -short, with which property tests become too short to find anything.
var Short = os.Getenv("PAWL_SHORT") != ""

// Times returns how often a test repeats something: usual, or short if [Short] is true. The first
// of the environment variables that is set overrides both.
func Times(usual, short int, variables ...string) int {
	for _, variable := range variables {
		if text := os.Getenv(variable); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				panic(fmt.Sprintf("%s must be a number, got %q", variable, text))
			}
			return n
		}
	}
	if Short {
		return short
	}
	return usual
}

//go:build !race

package pawl_test

// raceEnabled says that the race detector is on, which makes everything slower and larger.
const raceEnabled = false

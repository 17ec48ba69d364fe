package pawl

import "time"

// SetWallClock replaces the wall clock of rt, by which leases are judged beside the monotonic one.
// It is called before rt is used.
func (rt *Runtime) SetWallClock(clock func() time.Time) { rt.env.wallClock = clock }

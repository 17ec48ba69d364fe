// Package testkit holds the helpers that the tests of several packages share: a TestMain that looks
// for leaked goroutines, child processes, waiting for a condition, and the number of repetitions.
//
// Every package has the same TestMain. Functions that release what the tests share follow m.Run:
//
//	func TestMain(m *testing.M) { testkit.Main(m.Run, pgtest.Stop) }
//
// A test that needs a second process starts its own binary again, in a role:
//
//	func init() { testkit.Child("writer", writer) }
//
//	// writer runs in the child process.
//	func writer() error {
//		store, err := stores.OpenGiven()
//		if err != nil {
//			return err
//		}
//		testkit.Begin() // waits until the parent has started all processes
//		for {
//			...
//			testkit.Say("wrote %d", n)
//		}
//	}
//
//	func TestKilledWriter(t *testing.T) {
//		p := testkit.Start(t, "writer", stores.Env(location))
//		testkit.Ready(p)
//		p.Expect("wrote 1")
//		rest := p.Kill()
//
// A test waits for a condition, never for a time:
//
//	testkit.Eventually(t, func() bool { return queue.Len() == 2 })
//	answer := testkit.Receive(t, answers)
//
// The package imports neither an adapter nor the root package, so that all of them can use it.
// Package stores, below it, opens the stores.
package testkit

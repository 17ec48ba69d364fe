package pawl

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// What a waiter is, as far as its caller and whoever answers it have to agree on it. The bits above these count the uses of a pooled waiter, so
// that nothing need be done to begin another.
const (
	isAsleep  uint32 = 1 << iota // its caller waits for the bell
	isRunning                    // in memory: its function has its turn
	isLeft                       // in memory: its caller is gone
	isClosing                    // in memory: its caller cannot leave any more, but has no answer yet
	isDone                       // answered
	isOdd                        // in memory, with isDone: not just with an answer
	oneUse
)

// waiter is one mutation on its way through a queue. Its caller and the goroutine that runs its function are on different processors as a rule, and
// every cache line that one writes and the other touches costs as much as the queue itself: a function on the lock path needs to write the first only.
type waiter struct {
	ctx     context.Context
	next    *waiter
	is      atomic.Uint32 // see isAsleep and so on; of another use, it is nothing yet
	use     uint32        // which use this is
	answer  any           // *image[T] or *reply. What the caller gets is written before it is done, and read after. Until then, see runAtomic
	version uint64        // of an answer that is alive and does not expire, so that it need not be touched to be handed out; 0: look
	call    call
	parent  *frame // of the mutator that the call was made in; nil: none
	*bell
	own change

	err    error
	panic  *PanicError
	exited bool // the function called runtime.Goexit

	phase     phase // persisted; this and the next three are protected by queue.mu
	left      bool  // the caller is gone; in memory: and was counted, or need not be
	abandoned bool  // the result is not wanted any more
	prev      *waiter

	change    *change      // persisted
	since     atomic.Int64 // in memory: when its caller fell asleep, after epoch; 0: it did not
	submitted time.Time
	deadline  time.Time     // zero: none
	timer     *time.Timer   // persisted, it is left armed when the waiter is reused; it only wakes
	rings     time.Duration // when timer fires, after epoch
	cas       casState      // persisted path only
	place     *place        // in the line for a lease only
}

// bell is what a waiter's timer holds of it, and nothing else: the Go runtime may keep a stopped timer until it would have rung.
type bell struct {
	wake  chan struct{} // one slot: "look again"; a stray wake-up is harmless
	armed atomic.Bool   // the timer has not fired since it was last set
}

// epoch is a moment to count from.
var epoch = time.Now()

// now is time.Now for what is only compared with other moments: it reads one clock instead of two.
func now() time.Time { return epoch.Add(time.Since(epoch)) }

func newBell() *bell { return &bell{wake: make(chan struct{}, 1)} }

func newWaiter() *waiter { return &waiter{bell: newBell()} }

// disarm lets go of a waiter that is not used again: its alarm would hold it, and all that it was given, until it rings.
func (w *waiter) disarm() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// silence stops the alarm of a waiter that was answered. As long as a processor has a timer to look after, it reads the clock for every goroutine that it
// turns to, which a queue in memory feels.
func (w *waiter) silence() {
	if w.timer != nil && w.armed.Load() {
		w.timer.Stop()
		w.armed.Store(false) // if it is ringing, it says so again: then it is set once more than it need be
	}
}

func (b *bell) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// arm makes sure that a wake-up comes at the deadline. A pooled waiter's timer is usually armed for an earlier deadline
// already, and setting it again costs more than letting it ring once for nothing.
func (w *waiter) arm(now time.Time) {
	switch {
	case w.deadline.IsZero():
	case w.timer == nil:
		w.armed.Store(true)
		w.rings = w.deadline.Sub(epoch)
		b := w.bell
		w.timer = time.AfterFunc(w.deadline.Sub(now), func() { b.armed.Store(false); b.poke() })
	case !w.armed.Load() || w.deadline.Sub(epoch) < w.rings:
		w.armed.Store(true)
		w.rings = w.deadline.Sub(epoch)
		w.timer.Reset(w.deadline.Sub(now))
	}
}

// state tells what w is in this use.
func (w *waiter) state() uint32 { return w.thisUse(w.is.Load()) }

func (w *waiter) thisUse(v uint32) uint32 {
	if v&^(oneUse-1) != w.use {
		return 0
	}
	return v & (oneUse - 1)
}

// become adds to what w is, unless it is something else already. It returns what it was.
func (w *waiter) become(now, unless uint32) (was uint32, ok bool) {
	for {
		v := w.is.Load()
		if was = w.thisUse(v); was&unless != 0 {
			return was, false
		}
		if w.is.CompareAndSwap(v, w.use|was|now) {
			return was, true
		}
	}
}

func (w *waiter) done() bool { return w.is.Load()|isOdd == w.use|isDone|isOdd }

// answered tells the caller, if it looks, that what it gets is there. It reports whether the caller has to be woken to look. The waiter must not
// be touched afterwards, its bell excepted: its caller may reuse it.
func (w *waiter) answered(how uint32) (asleep bool) {
	return w.is.Swap(w.use|isDone|how)&isAsleep != 0 // of an earlier use, perhaps: a stray wake-up is harmless
}

// finish hands the caller its answer.
func (w *waiter) finish() {
	b := w.bell
	w.answered(isOdd)
	b.poke()
}

func (w *waiter) verb() string {
	if w.change != nil {
		return w.change.verb
	}
	return w.own.name()
}

// path names the way that w goes, for observers.
func (w *waiter) path() string {
	if w.cas.backend != nil {
		return "cas"
	}
	return "lock"
}

// deliver ends the caller's side of w: a panic or Goexit of its mutator is raised again here.
func (w *waiter) deliver() {
	if w.panic != nil {
		panic(w.panic)
	}
	if w.exited {
		runtime.Goexit()
	}
}

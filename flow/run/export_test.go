package run

import "github.com/pawl-go/pawl"

// Observe calls hook before ("before") and after ("after") each step, with the key of the run and
// the name of the step.
func (e *Engine) Observe(hook func(moment, key, step string)) {
	names := map[string]string{"step": "before", "done": "after"}
	e.hook = func(moment string, a *attempt) { hook(names[moment], a.record.Key, a.step) }
}

// InboxID returns the id of the document with the signals of one name.
var InboxID = inboxID

// Runtime returns the runtime of e.
func (e *Engine) Runtime() *pawl.Runtime { return e.rt }

// Stopped reports whether Stop was called.
func (e *Engine) Stopped() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stopped
}

// SignalsPerCommit is how many inboxes one commit of Delete deletes.
const SignalsPerCommit = signalsPerCommit

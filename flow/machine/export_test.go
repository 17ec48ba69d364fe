package machine

import "time"

// Observe lets tests hear of the steps of actions: before claim, after claim, in the body, before the commit, after the commit.
func (e *Engine) Observe(hook func(step string)) { e.hook = hook }

// Letters is the kind of after-effects.
var Letters = effectRecords

// Letter is an after-effect as it is stored.
type Letter = effectRecord

// ByHand lets the first round of a janitor that is not started yet begin an interval from now, not when it is started.
func (j *Janitor) ByHand() { j.round = time.Now() }

package machine

import "time"

// Observe calls hook at each step of an action: before claim, after claim, in the body, before the
// commit, after the commit.
func (e *Engine) Observe(hook func(step string)) { e.hook = hook }

// Letters is the kind of the stored after-effects.
var Letters = effectRecords

// Letter is a stored after-effect.
type Letter = effectRecord

// ByHand delays the first round of a janitor that has not started until about one interval from
// now.
func (j *Janitor) ByHand() { j.sweeps.began, j.surveys.began = time.Now(), time.Now() }

// ClaimHolder and CutOrigin write and read the name of a claim's holder.
var (
	ClaimHolder = claimHolder
	CutOrigin   = cutOrigin
)

package machine

import (
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/pawl-go/pawl"
)

// Validate returns all violations of the rules, joined. Each is a *RuleError that names the
// workflow, the step and the values.
func (w Workflow) Validate() error {
	v := &validator{w: &w, claims: w.claims()}
	v.workflow()
	keys, ids := map[string]bool{}, map[int]bool{}
	for i := range w.Steps {
		s := &w.Steps[i]
		v.step, v.by = s.Key, ""
		if s.Key == "" {
			v.step = "#" + strconv.Itoa(i+1)
			v.fault(RuleName, "the step has no step_key")
		}
		if keys[s.Key] && s.Key != "" {
			v.fault(RuleUnique, "two steps have this step_key")
		}
		if ids[s.ID] {
			v.fault(RuleUnique, "two steps have this step_id", strconv.Itoa(s.ID))
		}
		keys[s.Key], ids[s.ID] = true, true
		ownClaim := func(c Claim) bool { return len(c) == 2 && c.Into() == s.Status }
		if !slices.ContainsFunc(slices.Collect(maps.Values(s.Claim)), ownClaim) { // else see RuleClaimSource
			v.status("status", s.Status)
		}
		if len(s.Action) == 0 {
			v.fault(RuleRequester, "the step has no action, so no requester can fire it")
		}
		for _, by := range s.requesters() {
			v.by = by
			v.requester(s, by)
		}
	}
	v.step, v.by = "", ""
	v.reverts()
	v.reach()
	return errors.Join(v.errs...)
}

type validator struct {
	w        *Workflow
	claims   map[string]string
	step, by string // the step and requester that faults name
	errs     []error
}

func (v *validator) fault(r Rule, reason string, values ...string) {
	v.errs = append(v.errs, &RuleError{Rule: r, Workflow: v.w.Name, Step: v.step, By: v.by, Values: values, Reason: reason})
}

// known reports whether a status is in status_types.
func (v *validator) known(status string) bool { return slices.Contains(v.w.Statuses, status) }

// status reports a status that is not in status_types, or that is a claim state.
func (v *validator) status(what, status string) {
	if !v.known(status) {
		v.fault(RuleStatus, what+" is not in status_types", status)
	} else if _, claim := v.claims[status]; claim {
		v.fault(RuleClaimOnly, what+" is a claim state, which only the end of an action or the janitor leaves", status)
	}
}

// workflow checks the rules that are not about a step.
func (v *validator) workflow() {
	w := v.w
	for what, name := range map[string]string{"workflow": w.Name, "entity_kind": w.Kind} {
		if name == "" {
			v.fault(RuleName, what+" is empty")
		}
	}
	if w.Module == "" && len(v.claims) > 0 {
		v.fault(RuleName, "module is empty: a workflow with claim states needs one")
	}
	if len(w.Statuses) == 0 {
		v.fault(RuleStatus, "status_types is empty")
	}
	for i, s := range w.Statuses {
		if s == "" || len(s) > pawl.MaxLabel {
			v.fault(RuleStatus, "a status must have 1 to "+strconv.Itoa(pawl.MaxLabel)+" bytes", s)
		}
		if slices.Contains(w.Statuses[:i], s) {
			v.fault(RuleStatus, "the status occurs twice", s)
		}
	}
	if w.Initial != "" {
		v.status("initial_status", w.Initial)
	}
	if len(w.Steps) == 0 {
		v.fault(RuleName, "the workflow has no steps")
	}
}

// requester checks the rules about one requester of a step.
func (v *validator) requester(s *Step, by string) {
	if by == "" {
		v.fault(RuleRequester, "the requester has no name")
	}
	action, acts := s.Action[by]
	to, ends := s.To[by]
	switch {
	case !acts:
		v.fault(RuleRequester, "the requester has no action")
	case action == "":
		v.fault(RuleName, "the action has no name")
	}
	if !ends {
		v.fault(RuleRequester, "the requester has no successful_state")
	} else if claim, ok := s.Claim[by]; ok && len(claim) == 2 && claim.Into() == to {
		v.fault(RuleClaimTarget, "claim_into equals successful_state", to)
	} else {
		v.status("successful_state", to)
	}
	if claim, ok := s.Claim[by]; ok {
		v.claim(s, claim)
	}
	for i, effect := range s.Effects[by] {
		if effect == "" {
			v.fault(RuleName, "an after-effect has no name")
		} else if slices.Contains(s.Effects[by][:i], effect) {
			v.fault(RuleUnique, "the after-effect occurs twice", effect)
		}
	}
}

func (v *validator) claim(s *Step, claim Claim) {
	if len(claim) != 2 {
		v.fault(RuleClaimPair, "a claim must be two strings, [claim_into, revert_to]", claim...)
		return
	}
	into, revert := claim.Into(), claim.Revert()
	for _, status := range claim {
		if !v.known(status) {
			v.fault(RuleClaimStatus, "a status of the claim is not in status_types", status)
		}
	}
	if into == revert {
		v.fault(RuleClaimNoop, "claim_into equals revert_to", into)
	} else if _, ok := v.claims[revert]; ok {
		v.fault(RuleClaimOnly, "revert_to is a claim state", revert)
	} else if revert != s.Status && into != s.Status && v.known(revert) { // else see RuleClaimSource, RuleClaimStatus
		v.fault(RuleClaimOrigin, "revert_to differs from the step's status", revert, s.Status)
	}
	if into == s.Status {
		v.fault(RuleClaimSource, "claim_into equals the step's status: a second caller could claim too", into)
	}
}

// reverts checks that each claim state has one revert_to, which the janitor needs.
func (v *validator) reverts() {
	reverts := map[string][]string{}
	for _, s := range v.w.Steps {
		for _, by := range s.requesters() {
			c := s.Claim[by]
			if len(c) == 2 && !slices.Contains(reverts[c.Into()], c.Revert()) {
				reverts[c.Into()] = append(reverts[c.Into()], c.Revert())
				if len(reverts[c.Into()]) > 1 {
					v.step, v.by = s.Key, by
					v.fault(RuleClaimRevert, "claim_into "+strconv.Quote(c.Into())+" has several revert_to", reverts[c.Into()]...)
				}
			}
		}
	}
	v.step, v.by = "", ""
}

// reach reports statuses that no entity can have. Without an initial status, a new entity comes
// with the status of any step.
func (v *validator) reach() {
	reached := map[string]bool{v.w.Initial: true}
	if v.w.Initial == "" {
		for _, s := range v.w.Steps {
			reached[s.Status] = true
		}
	}
	for more := true; more; {
		before := len(reached)
		for _, s := range v.w.Steps {
			if !reached[s.Status] {
				continue
			}
			for to := range maps.Values(s.To) {
				reached[to] = true
			}
			for c := range maps.Values(s.Claim) {
				for _, status := range c {
					reached[status] = true
				}
			}
		}
		more = len(reached) > before
	}
	for _, status := range v.w.Statuses {
		if !reached[status] {
			v.fault(RuleUnreachable, "no step leads to this status", status)
		}
	}
}

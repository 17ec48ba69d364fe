// Package machine runs status machines whose actions must not run twice.
//
// A [Workflow] says which steps lead from which status to which, for whom, and by which action. [Machine.Fire] fires a step on an
// entity: it claims the entity by a version-checked change of status, under a lease, before the action's body starts; it runs the body once; and it
// commits what the body wants written together with the final status. Callers that come meanwhile are told that another operation is
// in progress. Whatever does not succeed gives the claim back. Only a crash leaves it behind: then a [Janitor], one for
// each module that owns entities, takes it back once the claim's lease has been over for a while.
//
//	                   Fire: claim                  commit: body's writes + final status + after-effects
//	step's status ───────────────────► claim_into ───────────────────────────────────────────────────► successful_state
//	                                       │
//	revert_to     ◄────────────────────────┘ release: rejected, failed, error, panic; or, after a crash, the janitor
//
// What can happen after the commit without harm, such as a mail, is better declared as an after-effect: it is recorded in that same
// commit, survives a crash, and is delivered at least once. See docs/claims.md.
package machine

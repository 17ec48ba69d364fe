// Package machine runs status machines whose actions must not run twice.
//
// A [Workflow] says which steps lead from which status to which, for which requester, and by which
// action. [Machine.Fire] fires a step on an entity. It claims the entity by a version-checked
// change of status, under a lease, before the action's body starts. It runs the body once, and
// commits the body's writes together with the final status. Other callers get [ClaimFailed]
// meanwhile. An action that does not succeed releases its claim. After a crash the claim stays; a
// [Janitor], one for each module that owns entities, reverts it once its lease is over.
//
//	                                        commit: body's writes,
//	                  Fire: claim           final status, after-effects
//	step's status ────────────────► claim_into ────────────────────► successful_state
//	                                    │
//	revert_to     ◄─────────────────────┘ release: rejected, failed, error, panic;
//	                                      after a crash: the janitor
//
// A side effect that may follow the commit, such as a mail, is better declared as an after-effect.
// The same commit records it, it survives a crash, and it is delivered at least once. See
// docs/claims.md.
package machine

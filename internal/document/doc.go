// Package document holds one version of a stored record as typed state, and the draft that
// mutations are applied to.
//
//	persist.Record ─► Of ─► Doc ─► Decode ─► View
//	                         │                 │
//	                         └──► NewDraft ◄───┘
//	                                │  Delete, Replace, Touch, Take, Renew: the mutations
//	                                ▼
//	                              Write ─► persist.Write, and the Doc that it leaves
//
// A Doc and a View never change, so goroutines share them without a lock. Only the View cached in a
// Doc is replaced, and any of two concurrent views is right. A Draft belongs to one goroutine;
// copying it by value is how a mutation that fails is undone.
//
// Fields that the state type does not know survive: a View remembers the document that it was
// decoded from, and encoding puts the unknown fields of that document back.
//
// The package knows neither the mutations nor their preconditions, neither schema upgrades nor
// indexed fields, and none of the errors that callers get.
package document

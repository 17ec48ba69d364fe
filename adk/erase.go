package adk

import "github.com/pawl-go/pawl/erase"

// Subject returns what a store has about a user of an app, for [erase.Parts]: the state of the user, and
// sessions with their state and events. The state of the app stays.
func Subject(app, user string) erase.Subject {
	id := userID(app, user)
	return erase.Subject{IDs: []string{id}, Prefixes: []string{id + "/"}}
}

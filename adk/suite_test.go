package adk_test

import (
	"testing"

	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/session/sessiontestsuite"
)

// ADK's own suite for session services.
func TestSuite(t *testing.T) {
	for name, config := range policies {
		t.Run(name, func(t *testing.T) {
			all := []stores.Store{stores.Memory}
			if config.Policy == adk.WholeSession {
				all = append(all, stores.Shared...)
			}
			for _, store := range all {
				t.Run(store.Name, func(t *testing.T) {
					options := sessiontestsuite.SuiteOptions{SupportsUserProvidedSessionID: true}
					sessiontestsuite.RunServiceTests(t, options, func(t *testing.T) session.Service {
						return open(t, store.New(t), config)
					})
				})
			}
		})
	}
}

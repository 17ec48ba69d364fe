package machine_test

import (
	_ "embed"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
)

//go:embed testdata/billing.json
var billing string

// A workflow loaded from JSON equals the same workflow as a Go literal. Proves CLAIM-1, CLAIM-17.
func TestLoad(t *testing.T) {
	w, err := machine.Load([]byte(billing))
	require.NoError(t, err)
	literal := machine.Workflow{
		Name: "billing", Module: "invoicing", Kind: "billing",
		Statuses: []string{"approved", "closing", "closed"},
		Steps: []machine.Step{{
			ID: 20, Key: "close", Status: "approved",
			Claim:   map[string]machine.Claim{"admin": {"closing", "approved"}},
			To:      map[string]string{"admin": "closed", "cron": "closed"},
			Action:  map[string]string{"admin": "CloseBillingActionUseCase", "cron": "CloseBillingActionUseCase"},
			Effects: map[string][]string{"admin": {"SendInvoices"}},
		}},
	}
	require.Equal(t, literal, w)
	require.NoError(t, literal.Validate())
	require.Equal(t, "closing", w.Steps[0].Claim["admin"].Into())
	require.Equal(t, "approved", w.Steps[0].Claim["admin"].Revert())
	text, err := json.Marshal(shipping())
	require.NoError(t, err)
	again, err := machine.Load(text)
	require.NoError(t, err)
	require.Equal(t, shipping(), again)
}

// Invalid JSON is refused with its line and column. Proves CLAIM-17.
func TestLoadSyntax(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		line, column   int
		reason         string
	}{
		{"trailing comma", `"closed"],`, `"closed",],`, 5, 52, "invalid character"},
		{"truncated", `  ]` + "\n}\n", "  ]\n", 16, 4, "unexpected"},
		{"string instead of number", `"step_id": 20`, `"step_id": "20"`, 8, 21, "steps.step_id must be an integer, got a string"},
		{"fraction instead of integer", `"step_id": 20`, `"step_id": 2.5`, 8, 20, "steps.step_id must be an integer, got a number 2.5"},
		{"list instead of string", `"module": "invoicing"`, `"module": []`, 3, 13, "module must be a string, got an array"},
		{"object instead of list", `["SendInvoices"]`, `{}`, 14, 42, "must be an array, got an object"},
		{"bool instead of object", `{ "admin": ["SendInvoices"] }`, `true`, 14, 34, "must be an object, got a bool"},
		{"unknown field", `"step_key"`, `"stepkey"`, 9, 7, `unknown field "stepkey"`},
		{"unknown top-level field", `"module"`, `"owner"`, 3, 3, `unknown field "owner"`},
		{"duplicate field", `"module": "invoicing"`, `"module": "x", "module": "y"`, 3, 18, `"module" occurs twice`},
		{"duplicate requester", `"cron": "closed" }`, `"admin": "closed" }`, 12, 48, `"admin" occurs twice`},
		{"trailing data", "]\n}\n", "]\n} {}\n", 17, 3, "after top-level value"},
		{"nothing", billing, "", 1, 1, ""},
		{"not an object", billing, "[1]", 1, 1, "the workflow must be an object, got an array"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, billing, c.old)
			_, err := machine.Load([]byte(strings.Replace(billing, c.old, c.new, 1)))
			var syntax *machine.SyntaxError
			require.ErrorAs(t, err, &syntax)
			require.Equal(t, [2]int{c.line, c.column}, [2]int{syntax.Line, syntax.Column}, err.Error())
			require.Contains(t, syntax.Reason, c.reason)
			require.Equal(t, "WORKFLOW_SYNTAX", pawl.Code(err))
		})
	}
}

// rulesOf returns the rules that err reports as violated.
func rulesOf(t *testing.T, err error) (rules []machine.Rule) {
	t.Helper()
	require.Error(t, err)
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, err.Error())
	for _, one := range joined.Unwrap() {
		var rule *machine.RuleError
		require.ErrorAs(t, one, &rule)
		require.Equal(t, "billing", rule.Workflow)
		require.Equal(t, "WORKFLOW_RULE", pawl.Code(one))
		rules = append(rules, rule.Rule)
	}
	return rules
}

// Each rule has its own error, which names the workflow and the step.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		rule           machine.Rule
		step           string
	}{
		{"claim with one status", `["closing", "approved"]`, `["closing"]`, machine.RuleClaimPair, "close"},                      // Proves CLAIM-11.
		{"claim with three statuses", `["closing", "approved"]`, `["closing", "approved", "x"]`, machine.RuleClaimPair, "close"}, // Proves CLAIM-11.
		{"claim with a number", `["closing", "approved"]`, `["closing", 1]`, machine.RuleClaimPair, "close"},                     // Proves CLAIM-11.
		{"claim is not a list", `["closing", "approved"]`, `"closing"`, machine.RuleClaimPair, "close"},                          // Proves CLAIM-11.
		{"unknown claim_into", `["closing", "approved"]`, `["shutting", "approved"]`, machine.RuleClaimStatus, "close"},          // Proves CLAIM-12.
		{"unknown revert_to", `["closing", "approved"]`, `["closing", "ready"]`, machine.RuleClaimStatus, "close"},               // Proves CLAIM-12.
		{"claim_into equals the status", `"status": "approved"`, `"status": "closing"`, machine.RuleClaimSource, "close"},        // Proves CLAIM-14.
		{"another requester ends in a claim state", `"cron": "closed"`, `"cron": "closing"`, machine.RuleClaimOnly, "close"},
		{"initial status is a claim state", `"steps"`, `"initial_status": "closing", "steps"`, machine.RuleClaimOnly, ""},
		{"unknown status", `"status": "approved"`, `"status": "ready"`, machine.RuleStatus, "close"},
		{"unknown target", `"cron": "closed"`, `"cron": "shut"`, machine.RuleStatus, "close"},
		{"unknown initial status", `"steps"`, `"initial_status": "new", "steps"`, machine.RuleStatus, ""},
		{"duplicate status", `"closed"],`, `"closed", "closed"],`, machine.RuleStatus, ""},
		{"status without a name", `"closed"],`, `"closed", ""],`, machine.RuleStatus, ""},
		{"unreachable status", `"closed"],`, `"closed", "lost"],`, machine.RuleUnreachable, ""},                                // Proves CLAIM-17.
		{"unreachable from the initial status", `"steps"`, `"initial_status": "closed", "steps"`, machine.RuleUnreachable, ""}, // Proves CLAIM-17.
		{"no action", `, "cron": "CloseBillingActionUseCase"`, ``, machine.RuleRequester, "close"},
		{"no target", `, "cron": "closed"`, ``, machine.RuleRequester, "close"},
		{"action without a name", `"cron": "CloseBillingActionUseCase"`, `"cron": ""`, machine.RuleName, "close"},
		{"claim of an unknown requester", `{ "admin": ["closing"`, `{ "stranger": ["closing", "approved"], "admin": ["closing"`, machine.RuleRequester, "close"},
		{"effect of an unknown requester", `"success_after_effect": {`, `"success_after_effect": { "stranger": ["x"],`, machine.RuleRequester, "close"},
		{"duplicate effect", `["SendInvoices"]`, `["SendInvoices", "SendInvoices"]`, machine.RuleUnique, "close"},
		{"effect without a name", `["SendInvoices"]`, `[""]`, machine.RuleName, "close"},
		{"no module", `"module": "invoicing"`, `"module": ""`, machine.RuleName, ""},
		{"no entity", `"entity_kind": "billing"`, `"entity_kind": ""`, machine.RuleName, ""},
		{"step without a key", `"step_key": "close"`, `"step_key": ""`, machine.RuleName, "#1"},
	} {
		t.Run(c.name, func(t *testing.T) { violates(t, c.old, c.new, c.rule, c.step) })
	}
}

// violates fails t unless the workflow with old replaced by new breaks this rule, in that
// step.
func violates(t *testing.T, old, new string, broken machine.Rule, step string) {
	t.Helper()
	require.Contains(t, billing, old)
	_, err := machine.Load([]byte(strings.Replace(billing, old, new, 1)))
	require.Contains(t, rulesOf(t, err), broken)
	for _, one := range err.(interface{ Unwrap() []error }).Unwrap() {
		var rule *machine.RuleError
		if require.ErrorAs(t, one, &rule); rule.Rule == broken {
			require.Equal(t, step, rule.Step)
			require.Contains(t, one.Error(), `"billing"`)
			return
		}
	}
}

// claim_into must differ from revert_to. Proves CLAIM-13.
func TestClaimMustChangeStatus(t *testing.T) {
	violates(t, `["closing", "approved"]`, `["closing", "closing"]`, machine.RuleClaimNoop, "close")
}

// A step must not end in its own claim state. Proves CLAIM-15.
func TestTargetMustNotBeClaimState(t *testing.T) {
	violates(t, `"admin": "closed"`, `"admin": "closing"`, machine.RuleClaimTarget, "close")
}

// A claim state reverts to the same status in all steps and for all requesters. Proves CLAIM-16.
func TestOneRevertPerClaimState(t *testing.T) {
	w := shipping()
	w.Name = "billing"
	w.Steps[1].Claim["admin"] = machine.Claim{"shipping", "shipped"}
	err := w.Validate()
	require.Contains(t, rulesOf(t, err), machine.RuleClaimRevert, "across steps")
	var rule *machine.RuleError
	for _, one := range err.(interface{ Unwrap() []error }).Unwrap() {
		if errors.As(one, &rule) && rule.Rule == machine.RuleClaimRevert {
			require.Equal(t, "return", rule.Step)
			require.Equal(t, []string{"packed", "shipped"}, rule.Values)
		}
	}

	w = shipping()
	w.Name = "billing"
	w.Steps[0].Claim["cron"] = machine.Claim{"shipping", "returned"}
	require.Equal(t, []machine.Rule{machine.RuleClaimOrigin, machine.RuleClaimRevert}, rulesOf(t, w.Validate()), "across requesters")
	w.Steps[0].Claim["cron"] = machine.Claim{"shipping", "packed"}
	require.NoError(t, w.Validate(), "the same pair twice is allowed")
}

// A claim reverts to the status that its step starts from: an action that is rejected moves
// nothing. Proves CLAIM-18.
func TestClaimRevertsToOrigin(t *testing.T) {
	w := shipping()
	w.Name = "billing"
	w.Steps[0].Claim["admin"] = machine.Claim{"shipping", "shipped"} // rejected, and yet shipped
	err := w.Validate()
	require.Equal(t, []machine.Rule{machine.RuleClaimOrigin}, rulesOf(t, err))
	var rule *machine.RuleError
	require.ErrorAs(t, err, &rule)
	require.Equal(t, []string{"ship", "admin"}, []string{rule.Step, rule.By})
	require.Equal(t, []string{"shipped", "packed"}, rule.Values, "revert_to, and the step's status")
	violates(t, `["closing", "approved"]`, `["closing", "closed"]`, machine.RuleClaimOrigin, "close")
	require.NoError(t, shipping().Validate())
}

// Validate reports all violations at once. Proves CLAIM-11, CLAIM-12, CLAIM-14.
func TestAllViolationsReported(t *testing.T) {
	w := shipping()
	w.Name = "billing"
	w.Steps[0].Claim["admin"] = machine.Claim{"shipping"}
	w.Steps[0].Key = "return"
	w.Steps[0].ID = 20
	w.Steps[1].Claim["admin"] = machine.Claim{"shipped", "nowhere"}
	require.ElementsMatch(t, []machine.Rule{
		machine.RuleClaimPair, machine.RuleUnique, machine.RuleUnique, machine.RuleClaimStatus, machine.RuleClaimSource, machine.RuleClaimOnly,
		machine.RuleClaimOnly, machine.RuleUnreachable,
	}, rulesOf(t, w.Validate()))
	require.ElementsMatch(t, []machine.Rule{machine.RuleName, machine.RuleStatus, machine.RuleName},
		rulesOf(t, machine.Workflow{Name: "billing"}.Validate()))
}

// Load accepts only valid workflows, and each reads the same when saved and loaded again.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(billing))
	f.Add([]byte(`{"steps":[{"successful_claim_state":{"a":[1]}}]}`))
	f.Add([]byte(`{"a":{"b":[{},[]]}} x`))
	f.Fuzz(func(t *testing.T, text []byte) {
		w, err := machine.Load(text)
		if err != nil {
			return
		}
		require.NoError(t, w.Validate())
		again, err := json.Marshal(w)
		require.NoError(t, err)
		_, err = machine.Load(again)
		require.NoError(t, err)
	})
}

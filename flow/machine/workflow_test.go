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

// TestLoad: a workflow is the same from JSON and as a literal.
//
// Proves CLAIM-1, CLAIM-17.
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

// TestLoadSyntax: what cannot be read is refused with its place.
//
// Proves CLAIM-17.
func TestLoadSyntax(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		line, column   int
		reason         string
	}{
		{"a comma too many", `"closed"],`, `"closed",],`, 5, 52, "invalid character"},
		{"no end", `  ]` + "\n}\n", "  ]\n", 16, 4, "unexpected"},
		{"a string where a number should be", `"step_id": 20`, `"step_id": "20"`, 8, 21, "step_id"},
		{"a list where a text should be", `"module": "invoicing"`, `"module": []`, 3, 13, "module"},
		{"a field that nobody knows", `"step_key"`, `"stepkey"`, 9, 7, `unknown field "stepkey"`},
		{"another at the top", `"module"`, `"owner"`, 3, 3, `unknown field "owner"`},
		{"a field twice", `"module": "invoicing"`, `"module": "x", "module": "y"`, 3, 18, `"module" occurs twice`},
		{"a requester twice", `"cron": "closed" }`, `"admin": "closed" }`, 12, 48, `"admin" occurs twice`},
		{"something behind it", "]\n}\n", "]\n} {}\n", 17, 3, "after top-level value"},
		{"nothing", billing, "", 1, 1, ""},
		{"not an object", billing, "[1]", 1, 1, ""},
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

// rulesOf returns the rules that err says are broken.
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

// TestRules: each rule has an error of its own that names the workflow and the step.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		rule           machine.Rule
		step           string
	}{
		{"a claim of one", `["closing", "approved"]`, `["closing"]`, machine.RuleClaimPair, "close"},                       // Proves CLAIM-11.
		{"a claim of three", `["closing", "approved"]`, `["closing", "approved", "x"]`, machine.RuleClaimPair, "close"},    // Proves CLAIM-11.
		{"a claim of numbers", `["closing", "approved"]`, `["closing", 1]`, machine.RuleClaimPair, "close"},                // Proves CLAIM-11.
		{"a claim that is no list", `["closing", "approved"]`, `"closing"`, machine.RuleClaimPair, "close"},                // Proves CLAIM-11.
		{"an unknown claim_into", `["closing", "approved"]`, `["shutting", "approved"]`, machine.RuleClaimStatus, "close"}, // Proves CLAIM-12.
		{"an unknown revert_to", `["closing", "approved"]`, `["closing", "ready"]`, machine.RuleClaimStatus, "close"},      // Proves CLAIM-12.
		{"claim_into is the status", `"status": "approved"`, `"status": "closing"`, machine.RuleClaimSource, "close"},      // Proves CLAIM-14.
		{"another ends in a claim state", `"cron": "closed"`, `"cron": "closing"`, machine.RuleClaimOnly, "close"},
		{"born in a claim state", `"steps"`, `"initial_status": "closing", "steps"`, machine.RuleClaimOnly, ""},
		{"an unknown status", `"status": "approved"`, `"status": "ready"`, machine.RuleStatus, "close"},
		{"an unknown target", `"cron": "closed"`, `"cron": "shut"`, machine.RuleStatus, "close"},
		{"an unknown beginning", `"steps"`, `"initial_status": "new", "steps"`, machine.RuleStatus, ""},
		{"a status twice", `"closed"],`, `"closed", "closed"],`, machine.RuleStatus, ""},
		{"a status without a name", `"closed"],`, `"closed", ""],`, machine.RuleStatus, ""},
		{"an unreachable status", `"closed"],`, `"closed", "lost"],`, machine.RuleUnreachable, ""},                        // Proves CLAIM-17.
		{"unreachable from the beginning", `"steps"`, `"initial_status": "closed", "steps"`, machine.RuleUnreachable, ""}, // Proves CLAIM-17.
		{"no action", `, "cron": "CloseBillingActionUseCase"`, ``, machine.RuleRequester, "close"},
		{"no target", `, "cron": "closed"`, ``, machine.RuleRequester, "close"},
		{"an action without a name", `"cron": "CloseBillingActionUseCase"`, `"cron": ""`, machine.RuleName, "close"},
		{"a claim of nobody", `{ "admin": ["closing"`, `{ "nobody": ["closing", "approved"], "admin": ["closing"`, machine.RuleRequester, "close"},
		{"an effect of nobody", `"success_after_effect": {`, `"success_after_effect": { "nobody": ["x"],`, machine.RuleRequester, "close"},
		{"an effect twice", `["SendInvoices"]`, `["SendInvoices", "SendInvoices"]`, machine.RuleUnique, "close"},
		{"an effect without a name", `["SendInvoices"]`, `[""]`, machine.RuleName, "close"},
		{"no owner", `"module": "invoicing"`, `"module": ""`, machine.RuleName, ""},
		{"no entity", `"entity_kind": "billing"`, `"entity_kind": ""`, machine.RuleName, ""},
		{"a step without a key", `"step_key": "close"`, `"step_key": ""`, machine.RuleName, "#1"},
	} {
		t.Run(c.name, func(t *testing.T) { violates(t, c.old, c.new, c.rule, c.step) })
	}
}

// violates requires that the workflow with old replaced breaks the rule, in that step.
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

// TestRuleOfNoops: a claim that is its own way back claims nothing.
//
// Proves CLAIM-13.
func TestRuleOfNoops(t *testing.T) {
	violates(t, `["closing", "approved"]`, `["closing", "closing"]`, machine.RuleClaimNoop, "close")
}

// TestRuleOfTargets: a step that ends in its claim state leaves the entity to the janitor.
//
// Proves CLAIM-15.
func TestRuleOfTargets(t *testing.T) {
	violates(t, `"admin": "closed"`, `"admin": "closing"`, machine.RuleClaimTarget, "close")
}

// TestRuleOfReverts: one claim state reverts to one status, in all steps and for all requesters.
//
// Proves CLAIM-16.
func TestRuleOfReverts(t *testing.T) {
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
	require.Equal(t, []machine.Rule{machine.RuleClaimRevert}, rulesOf(t, w.Validate()), "across requesters")
	w.Steps[0].Claim["cron"] = machine.Claim{"shipping", "packed"}
	require.NoError(t, w.Validate(), "the same pair is no contradiction")
}

// TestAllViolationsAtOnce: whoever corrects a workflow hears of everything at once. Proves CLAIM-11, CLAIM-12, CLAIM-14.
func TestAllViolationsAtOnce(t *testing.T) {
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

// FuzzLoad: whatever is read, Load answers, and what it accepts is valid and reads the same again.
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

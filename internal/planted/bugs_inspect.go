package main

// inspectBugs break package inspect: what a page reads, shows and lets pass. The script in the browser
// is tested by the module examples/chat/browser.
var inspectBugs = []Bug{
	{
		Name: "inspect-forged-action", Mechanism: "an action needs the token of the page that confirms it",
		Proves: []string{"INSPECT-1"}, File: "inspect/act.go",
		Old: `token == "" || subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(token)) != 1`, New: `token == "" || subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(cookie.Value)) != 1`,
		Pkg: "./inspect", Run: "^TestForgedRequests$|^TestRelease$/memory", Quick: true,
	},
	{
		Name: "inspect-cross-origin-action", Mechanism: "an action is refused if the browser says that another site sends it",
		Proves: []string{"INSPECT-1"}, File: "inspect/act.go",
		Old: `h.cross.Check(r) != nil || `, New: ``,
		Pkg: "./inspect", Run: "^TestForgedRequests$", Quick: true,
	},
	{
		Name: "inspect-action-on-another-version", Mechanism: "an action is done on the version that was shown",
		Proves: []string{"INSPECT-1"}, File: "inspect/act.go",
		Old: `	if r.PostFormValue("pin") != a.pin(rec) {`, New: `	if false {`,
		Pkg: "./inspect", Run: "^TestDelete$/memory", Quick: true,
	},
	{
		Name: "inspect-actions-are-on", Mechanism: "only the actions of Config.Actions are done",
		Proves: []string{"INSPECT-1"}, File: "inspect/act.go",
		Old: `	case !h.allows(a.Name):`, New: `	case h.config.Author == nil:`,
		Pkg: "./inspect", Run: "^TestActionsAreOff$", Quick: true,
	},
	{
		Name: "inspect-action-without-author", Mechanism: "a request whose author is not known may not act",
		Proves: []string{"INSPECT-1"}, File: "inspect/act.go",
		Old: `	case h.config.Author(r) == "":`, New: `	case h.config.Author == nil:`,
		Pkg: "./inspect", Run: "^TestActionsAreOff$", Quick: true,
	},
	{
		Name: "inspect-action-is-not-logged", Mechanism: "an action is logged with its author",
		Proves: []string{"INSPECT-1"}, File: "inspect/act.go",
		Old: `	h.config.Logger.InfoContext(r.Context(), "inspect: action", attrs...)`, New: ``,
		Pkg: "./inspect", Run: "^TestDelete$/memory", Quick: true,
	},
	{
		Name: "inspect-abandons-a-later-function", Mechanism: "the function that was shown is given up, and no later one",
		Proves: []string{"INSPECT-1"}, File: "cas_slow.go",
		Old: `(since.IsZero() || w.Value.started.Equal(since))`, New: `(since.IsZero() || !w.Value.started.IsZero())`,
		Pkg: ".", Run: "^TestAbandonByStats$/(memory|sqlite)", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "inspect-slow-form", Mechanism: "a form that comes slowly is cut off",
		Proves: []string{"INSPECT-1"}, File: "inspect/inspect.go",
		Old: `	_ = conn.SetReadDeadline(time.Now().Add(within)) //`, New: `	//`,
		Pkg: "./inspect", Run: "^TestSlowForm$", Flags: []string{"-timeout=45s"},
	},
	{
		Name: "inspect-shows-a-redacted-entry", Mechanism: "entries of lists are redacted",
		Proves: []string{"INSPECT-3"}, File: "inspect/redact.go",
		Old: `			v[i] = h.redact(key, path.At(strconv.Itoa(i)), entry)`, New: `			_, _ = i, entry`,
		Pkg: "./inspect", Run: "^TestRedactedEntries$", Quick: true,
	},
	{
		Name: "inspect-shows-a-redacted-label", Mechanism: "a label is hidden with the field that it is a copy of",
		Proves: []string{"INSPECT-3"}, File: "inspect/redact.go",
		Old: `	if shown, redacted := c.h.config.Redact(c.r.Key, field, value); redacted {`, New: `	if shown, redacted := c.h.config.Redact(c.r.Key, field, value); redacted && field == "due" {`,
		Pkg: "./inspect", Run: "^TestRedact$/memory|^TestRedactedCopies$", Quick: true,
	},
	{
		Name: "inspect-shows-a-label-of-an-unknown-kind", Mechanism: "a label whose field is not known is hidden if any field is",
		Proves: []string{"INSPECT-3"}, File: "inspect/redact.go",
		Old: `		c.some = c.some || redacted`, New: ``,
		Pkg: "./inspect", Run: "^TestRedactedCopies$", Quick: true,
	},
	{
		Name: "inspect-trusts-every-label", Mechanism: "a label that another release took from another field is hidden if any field is",
		Proves: []string{"INSPECT-3"}, File: "inspect/redact.go",
		Old: ` && value == any(r.Label)`, New: ``,
		Pkg: "./inspect", Run: "^TestRedactedDocumentsOfOtherReleases$", Quick: true,
	},
	{
		Name: "inspect-shows-newer-schemas", Mechanism: "a document of a newer schema is not shown if anything may have to be hidden",
		Proves: []string{"INSPECT-3"}, File: "inspect/redact.go",
		Old: `known && r.Schema > k.Schema && h.config.Redact != nil`, New: `known && r.Schema > k.Schema && false`,
		Pkg: "./inspect", Run: "^TestRedactedDocumentsOfOtherReleases$", Quick: true,
	},
	{
		Name: "inspect-retries-a-later-failure", Mechanism: "an action of a view is about the failure that was shown",
		Proves: []string{"INSPECT-1"}, File: "inspect/views.go",
		Old: `return r.Version }`, New: `return 0 }`,
		Pkg: "./inspect", Run: "^TestStaleViewActions$", Quick: true,
	},
	{
		Name: "inspect-tells-labels", Mechanism: "a list by labels does not tell a hidden label",
		Proves: []string{"INSPECT-3"}, File: "inspect/list.go",
		Old: `		if len(q.Labels) > 0 && row.Label != rec.Label {`, New: `		if false {`,
		Pkg: "./inspect", Run: "^TestRedactedCopies$", Quick: true,
	},
	{
		Name: "inspect-live-view-shows-all", Mechanism: "the live view sends what is redacted as such",
		Proves: []string{"INSPECT-3"}, File: "inspect/document.go",
		Old: `				content, failed := h.content(rec)`, New: `				content, failed := (&handler{config: Config{}}).content(rec)`,
		Pkg: "./inspect", Run: "^TestRedact$/memory", Quick: true,
	},
	{
		Name: "inspect-hidden-characters", Mechanism: "characters that are not printable are shown as escapes",
		Proves: []string{"INSPECT-2"}, File: "inspect/redact.go",
		Old: `	hidden := func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }`, New: `	hidden := func(r rune) bool { return unicode.IsControl(r) && r != '\n' }`,
		Pkg: "./inspect", Run: "^TestHostileContent$/memory", Quick: true,
	},
	{
		Name: "inspect-can-be-framed", Mechanism: "the pages allow no scripts, styles and frames of others",
		Proves: []string{"INSPECT-2"}, File: "inspect/inspect.go",
		Old: `frame-ancestors 'none'"`, New: `"`,
		Pkg: "./inspect", Run: "^TestHeaders$", Quick: true,
	},
	{
		Name: "inspect-reads-all-held", Mechanism: "a list that is filtered here reads a bounded number of documents",
		Proves: []string{"INSPECT-4"}, File: "inspect/list.go",
		Old: `	for range maxScans {`, New: `	for range 1000 * maxScans {`,
		Pkg: "./inspect", Run: "^TestListIsBounded$", Quick: true,
	},
	{
		Name: "inspect-counts-all", Mechanism: "the documents of a kind are counted up to a bound",
		Proves: []string{"INSPECT-4"}, File: "inspect/list.go",
		Old: `persist.Query{Kind: k.Name, Limit: countLimit})`, New: `persist.Query{Kind: k.Name, Limit: 1 << 30})`,
		Pkg: "./inspect", Run: "^TestListIsBounded$|^TestPagesReadFewBytes$", Quick: true,
	},
	{
		Name: "inspect-sqlite-reads-all-for-tombstones", Mechanism: "a later page of tombstones is read by their index",
		Proves: []string{"INSPECT-4"}, File: "persist/sqlite/list.go",
		Old: `		where("("+sorting+strings.Join(order, ", "+sorting)+compared`, New: `		where("("+strings.Join(order, ", ")+compared`,
		Pkg: "./inspect", Run: "^TestPagesReadFewBytes$",
	},
}

package pgproxy

import "github.com/jackc/pgx/v5/pgproto3"

// transaction follows the messages of a client to find its commits. It runs ahead of the server,
// which may refuse any statement. It is synchronized with the server's state when no request is
// unanswered.
type transaction struct {
	words      words
	prepared   map[string]string // SQL by the name of the prepared statement
	portals    map[string]string // SQL by the name of the portal
	explicit   bool              // after BEGIN
	wrote      bool              // a statement wrote
	statements []string          // since it began
	unfinished bool              // there were messages since the last Sync or simple query
}

func newTransaction(w words) *transaction {
	return &transaction{words: w, prepared: make(map[string]string), portals: make(map[string]string)}
}

// follow records a message and reports whether it is a commit. The commit has the statements of the
// transaction.
func (t *transaction) follow(kind byte, body []byte) (commit Commit, ok bool, err error) {
	t.unfinished = !endsRequest(kind)
	switch kind {
	case parseMessage:
		var m pgproto3.Parse
		if err = m.Decode(body); err == nil {
			t.prepared[m.Name] = m.Query
		}
	case bindMessage:
		var m pgproto3.Bind
		if err = m.Decode(body); err == nil {
			t.portals[m.DestinationPortal] = t.prepared[m.PreparedStatement]
		}
	case executeMessage:
		var m pgproto3.Execute
		if err = m.Decode(body); err == nil {
			commit, ok = t.execute(t.portals[m.Portal])
		}
	case syncMessage:
		commit, ok = t.endImplicit()
	case queryMessage:
		var m pgproto3.Query
		if err = m.Decode(body); err != nil {
			break
		}
		commit, ok = t.execute(m.String)
		if !ok {
			commit, ok = t.endImplicit()
		}
	}
	return commit, ok, err
}

// execute records SQL text, which may be several statements.
func (t *transaction) execute(text string) (commit Commit, ok bool) {
	for _, statement := range split(text) {
		t.statements = append(t.statements, statement)
		switch t.words.effect(statement) {
		case begins:
			t.explicit = true
		case writes:
			t.wrote = true
		case commits:
			commit, ok = Commit{Explicit: true, Statements: t.statements}, true
			t.reset(false)
		case rollsBack:
			t.reset(false)
		}
	}
	return commit, ok
}

// endImplicit ends the implicit transaction, if there is no explicit one.
func (t *transaction) endImplicit() (commit Commit, ok bool) {
	if t.explicit {
		return Commit{}, false
	}
	commit, ok = Commit{Statements: t.statements}, t.wrote
	t.reset(false)
	return commit, ok
}

// reset starts a new transaction.
func (t *transaction) reset(explicit bool) {
	t.explicit, t.wrote, t.statements = explicit, false, nil
}

// synchronize adopts the server's state after it has answered all requests.
func (t *transaction) synchronize(explicit bool) {
	if !t.unfinished && explicit != t.explicit {
		t.reset(explicit)
	}
}

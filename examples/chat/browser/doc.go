// Package browser tests the chat example end to end: server processes on SQLite, plain files and
// PostgreSQL, and its page in Chromium. It tests the pages of package inspect there, too.
//
//	make browser      run the tests
//	make screenshot   take the pictures of docs/chat.md and docs/inspect.md again
package browser

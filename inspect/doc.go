// Package inspect is a web page that shows the documents, queues and leases of a runtime, and what
// the layers above keep in its store: runs, batches, calls, claims, streams. It is an [http.Handler]
// to mount in one's own server, behind one's own authentication:
//
//	mux.Handle("/pawl/", admin(inspect.New(rt, inspect.Config{})))
//
// The handler may be mounted at any path that ends with a slash: only the last segment of a request's
// path names a page, and all links are relative.
//
// # What it shows
//
// A page reads a bounded number of records, whatever the size of the store. So a kind has "more than
// 100" documents rather than a count. The kinds are those that the runtime knows and those in
// Config.Kinds: no store can list its kinds without reading everything.
//
// A document is shown as it is stored, also if no code of this release can read it, and the page
// follows its changes. [Config.Redact] hides fields, everywhere.
//
// # What it changes
//
// Nothing, unless Config.Actions names an action. An action is confirmed on a page of its own, is
// sent as a POST with a token against forged requests, and is logged with the name of its author.
//
// # Safety
//
// The package has no authentication. The responses forbid scripts and styles other than the two
// embedded files, framing, caching and requests to other sites. Ids and documents are data: they are
// never part of a script, and characters that are not printable are shown as escapes.
package inspect

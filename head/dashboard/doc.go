// Package dashboard serves the page of a head. Today that is the complete read-only
// page without script, made of html/template and one style sheet; it stays for ever as
// the fallback of the full page. It reads what it shows through Reader, in the words of
// runtime/api, and changes nothing. Who may see it is head/access; signing in and out
// is head/api.
package dashboard

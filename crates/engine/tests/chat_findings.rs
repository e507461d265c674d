//! What fuzzing found in chat templates.

use minfer_engine::chat::{ChatTemplate, Message, RenderOptions, SpecialTokens, TemplateError};

fn render(source: &str) -> Result<String, TemplateError> {
    let template = ChatTemplate::new(source, SpecialTokens::default())?;
    let message = Message::new("user", "a".repeat(1000));
    template.render(&[message], &RenderOptions::default()).map(|r| r.text().to_owned())
}

/// `format` allocated whatever width it was asked for: 100 GB, and the process was ended.
#[test]
fn widths_of_format_are_paid_for() {
    use TemplateError::OutOfFuel;
    for endless in [
        "{{ '{:>99999999999}'.format(1) }}",
        "{{ '{:099999999999}'.format(1) }}",
        "{{ '{:.99999999999f}'.format(1.5) }}",
        "{{ '{:^99999999999999999999999}'.format('a') }}",
    ] {
        assert_eq!(render(endless), Err(OutOfFuel), "{endless}");
    }
    // A field for each use of a long text: 1000 times a message of 1000 bytes, squared.
    let squared = "{% set m = messages[0].content %}{% set f = '{0}'*1000 %}{{ f.format(f.format(m)) }}";
    assert_eq!(render(squared), Err(OutOfFuel));
    let hidden = "{% set f = '{0[a]}'*1000 %}{{ f.format({'a': f.format({'a': messages[0].content})}) }}";
    assert_eq!(render(hidden), Err(OutOfFuel));
    // What is asked for in earnest is cheap.
    assert_eq!(render("{{ '{:>6}|{:.2f}|{}'.format(12, 1.5, 'x') }}").unwrap(), "    12|1.50|x");
}

/// Printing a value that contains itself overflowed the stack; one whose text is exponentially longer than itself took
/// for ever.
#[test]
fn values_that_contain_themselves_are_not_printed() {
    let cycle = "{% set ns = namespace() %}{% set ns.a = ns %}";
    let shared =
        "{% set ns = namespace(a=['x']) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}";
    for print in ["{{ ns }}", "{{ [ns.a] }}", "{{ raise_exception(ns) }}"] {
        let error = render(&format!("{cycle}{print}")).unwrap_err();
        assert!(error.to_string().contains("value nested deeper than 128"), "{print}: {error}");
        assert_eq!(render(&format!("{shared}{print}")), Err(TemplateError::OutOfFuel), "{print}");
    }
    // Negative control: nested values of ordinary size are printed.
    assert_eq!(render("{{ [[1, 'a'], {'k': [none]}] }}").unwrap(), "[[1, 'a'], {'k': [None]}]");
}

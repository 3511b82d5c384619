//! Kinds of apps.

/// Kind of app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framework {
    /// Next.js.
    Next,
    /// Vite, built to files.
    Vite,
    /// Create React App, built to files.
    Cra,
    /// A Node program.
    Node,
    /// A Python program.
    Python,
    /// Plain files.
    Static,
    /// Another framework, with explicit commands.
    Custom,
}

impl Framework {
    /// All kinds, with their names.
    pub const NAMES: [&'static str; 7] = ["next", "vite", "cra", "node", "python", "static", "custom"];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Framework::Next => "next",
            Framework::Vite => "vite",
            Framework::Cra => "cra",
            Framework::Node => "node",
            Framework::Python => "python",
            Framework::Static => "static",
            Framework::Custom => "custom",
        }
    }

    /// The kind of that name.
    pub fn parse(text: &str) -> Option<Self> {
        let all = [
            Framework::Next,
            Framework::Vite,
            Framework::Cra,
            Framework::Node,
            Framework::Python,
            Framework::Static,
            Framework::Custom,
        ];
        // The name that published clients use.
        let text = if text == "nextjs" { "next" } else { text };
        all.into_iter().find(|kind| kind.as_str() == text)
    }
}

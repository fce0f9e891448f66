//! Presets: studies that come with Tau.

use super::plan::Study;

const PRESETS: &[(&str, &str)] = &[
    ("speed-up", include_str!("../../presets/speed-up.toml")),
    ("downpour-nodes", include_str!("../../presets/downpour-nodes.toml")),
    ("downpour-splits", include_str!("../../presets/downpour-splits.toml")),
    (
        "downpour-as-published",
        include_str!("../../presets/downpour-as-published.toml"),
    ),
    ("averaging", include_str!("../../presets/averaging.toml")),
    ("best-peer", include_str!("../../presets/best-peer.toml")),
    ("links", include_str!("../../presets/links.toml")),
];

/// Returns the study that comes with Tau under this name; the error for an unknown name lists all names.
pub(crate) fn preset(name: &str) -> Result<Study, String> {
    let found = PRESETS.iter().find(|(known, _)| *known == name);
    let (_, text) = found.ok_or_else(|| {
        let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
        format!("there is no preset '{name}'; the presets are: {}", names.join(", "))
    })?;
    Study::from_toml(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_study() {
        for (name, _) in PRESETS {
            let runs = preset(name).unwrap().runs();
            assert!(runs.as_ref().is_ok_and(|runs| !runs.is_empty()), "{name}: {runs:?}");
        }
        assert!(preset("magic").unwrap_err().contains("speed-up, downpour-nodes"));
    }
}
